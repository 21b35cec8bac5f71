"""Runs the revisions on the connection that the store hands over."""

from __future__ import annotations

from alembic import context


def run() -> None:
    context.configure(connection=context.config.attributes["connection"])
    # The store has begun a transaction: the revisions become part of it, all or none.
    context.run_migrations()


run()
