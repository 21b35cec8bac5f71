"""The revisions, oldest first: m0001_..., m0002_..."""
