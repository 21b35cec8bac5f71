"""Runs the revisions on the connection that the store hands over."""

from __future__ import annotations

from alembic import context


def run() -> None:
    attributes = context.config.attributes
    context.configure(connection=attributes["connection"], on_version_apply=attributes["on_version_apply"])
    # The store has begun a transaction: the revisions become part of it, all or none.
    context.run_migrations()


run()
