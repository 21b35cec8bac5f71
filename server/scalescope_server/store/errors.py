"""What can go wrong in the store, told apart by what the caller should do about it."""

# ruff: noqa: N818 - these are read as words where they are caught: except NotFound, except Busy.

from __future__ import annotations


class StoreError(Exception):
    """Base of everything the store raises on purpose."""


class BadRecord(StoreError):
    """A record's content cannot be true, so nothing of its batch was stored. Sending it again will not help.

    Attributes:
        record: what it was, "hello", "layout", "steps", "sample", "tally", "probe", "setup",
            "event" or "bye"; "batch" or "heartbeat" where only the database knows what it is.
        sequence: its number, None for what has none.
    """

    def __init__(self, record: str, sequence: int | None, message: str) -> None:
        self.record = record
        self.sequence = sequence
        number = "" if sequence is None else f" {sequence}"
        super().__init__(f"{record}{number}: {message}")


class Gone(StoreError):
    """The run was deleted after this segment had begun, so nothing more of the segment is stored."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run!r} was deleted on the server: start the training again to record it anew")


class Superseded(StoreError):
    """A later connection of the same rank was let in, so nothing more of this one is stored."""

    def __init__(self) -> None:
        super().__init__("a later connection of the same run, segment and rank took over")


class Busy(StoreError):
    """More is waiting to be written than the writer may hold. Stop reading from the trainer, then try again."""


class Held(Busy):
    """Another server writes the run and does not come to an end: it is slow, or frozen. Nothing was stored."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"another server holds run {run!r}; if it does not live any more, it lets go of it soon")


class Unavailable(StoreError):
    """The database cannot be read or written now (locked, disk full, gone). Nothing was stored."""


class NotFound(StoreError):
    """There is no such run."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"expected the id of a stored run, got {run!r}")


class NoRule(StoreError):
    """There is no such rule."""

    def __init__(self, rule: int) -> None:
        self.rule = rule
        super().__init__(f"expected the id of a stored rule, got {rule}")


class NoAlert(StoreError):
    """There is no such alert."""

    def __init__(self, alert: int) -> None:
        self.alert = alert
        super().__init__(f"expected the id of a stored alert, got {alert}")


class RuleChanged(StoreError):
    """Somebody has changed the rule since it was read: what is to be put in its place is of an older one."""

    def __init__(self, name: str, seen: int, revision: int) -> None:
        super().__init__(
            f"somebody has changed the rule {name!r} since it was read here (revision {seen}, now {revision}): "
            "read it again, and change that"
        )


class RuleTaken(StoreError):
    """Another rule has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is a rule {name!r} already")


class BadCursor(StoreError):
    """A cursor that no answer of this store gave."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"expected the 'next' of an earlier answer as the cursor, got {cursor!r}")


class SchemaError(StoreError):
    """The file is no database that this program can use; the message says why and what to do."""
