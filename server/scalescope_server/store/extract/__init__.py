"""Everything that is stored of a run, table by table, in pages that are each a short read of their own."""
