"""What a rule's condition says at one moment, before its alert's state is asked."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Answer(Enum):
    """``NO_DATA``: what it asks for was not told, or not for long enough. ``ERROR``: it cannot be evaluated."""

    HOLDS = "holds"
    DOES_NOT = "does not"
    NO_DATA = "no data"
    ERROR = "error"


class Verdict(Struct, frozen=True):
    """An answer with its evidence.

    ``value``: what was compared, where one number stands for it. ``culprit``: the parameter, the rank or the finding
    that it is about. ``sentence``: why it could not be evaluated.
    """

    answer: Answer
    value: float | None = None
    culprit: str | int | None = None
    sentence: str = ""


NO_DATA = Verdict(Answer.NO_DATA)
DOES_NOT = Verdict(Answer.DOES_NOT)
