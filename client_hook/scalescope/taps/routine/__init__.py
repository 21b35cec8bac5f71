"""Updates that go as those before them went, noted down in a few lines."""
