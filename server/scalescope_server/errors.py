"""What can go wrong on the server's side, told in a sentence: one base, the answer's status and code as data."""

from __future__ import annotations

from scalescope_server.store.errors import BadCursor, NoAlert, NoRule, NotFound, RuleChanged, RuleTaken, StoreError


class ServerError(Exception):
    """Base of this package's errors. ``field`` names the input that is to blame, where one is."""

    status = 500
    code = "internal"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotFoundError(ServerError):
    """The thing asked for is not there (404)."""

    status = 404
    code = "not_found"


class InvalidError(ServerError):
    """An input whose type is right and whose value means nothing here (422)."""

    status = 422
    code = "invalid"


class ConflictError(ServerError):
    """What is to be made is there already (409)."""

    status = 409
    code = "conflict"


class UnauthorizedError(ServerError):
    """The server has a token and the caller did not give it (401)."""

    status = 401
    code = "token"


class ForbiddenError(ServerError):
    """The caller comes from a place that may not ask this (403)."""

    status = 403
    code = "forbidden"


class TooLargeError(ServerError):
    """A request body above the limit (413)."""

    status = 413
    code = "too_large"


class UnavailableError(ServerError):
    """The database or this server cannot answer now; the same call may succeed later (503)."""

    status = 503
    code = "unavailable"


class SettingError(ServerError):
    """A setting that cannot be used; the text says what was expected, what came and what to do."""

    code = "setting"


def from_store(error: StoreError) -> ServerError:
    """The answer to a call that the store could not serve."""
    if isinstance(error, NotFound):
        return NotFoundError(f"there is no run {error.run!r}", field="run")
    if isinstance(error, NoRule):
        return NotFoundError(f"there is no rule {error.rule}", field="rule")
    if isinstance(error, NoAlert):
        return NotFoundError(f"there is no alert {error.alert}", field="alert")
    if isinstance(error, RuleTaken):
        return ConflictError(str(error), field="name")
    if isinstance(error, RuleChanged):
        return ConflictError(str(error), field="revision")
    if isinstance(error, BadCursor):
        return InvalidError(str(error), field="cursor")
    return UnavailableError(str(error))
