"""Alembic's environment and revisions; run by scalescope_server.store.schema, never imported by name."""
