"""Watching runs by rules: what is read of the store, what is remembered of a run, what becomes of it."""
