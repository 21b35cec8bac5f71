"""What the hook and its command raise on purpose. Nothing here is ever raised inside a training step."""

from __future__ import annotations


class ScalescopeError(Exception):
    """Base of every error this package raises; its text is one line that says what to do."""


class SettingError(ScalescopeError, ValueError):
    """A setting that cannot be used. ``name`` is the argument or the environment variable it came from."""

    def __init__(self, name: str, *, expected: str, got: object) -> None:
        super().__init__(f"{name}: expected {expected}, got {got!r}")
        self.name = name
        self.expected = expected
        self.got = got


class CommandError(ScalescopeError):
    """A command could not do its work: told in one line, exit code 1."""


class UsageError(CommandError):
    """A command was asked for something that does not make sense: told in one line, exit code 2."""
