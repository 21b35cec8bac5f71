"""A rule made ready to be evaluated, or the sentence why it cannot be."""

from __future__ import annotations

from msgspec import Struct

from scalescope_server.rules.alert import Terms
from scalescope_server.rules.dependence import Lookback, Needs, lookback, needs
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.expression import Condition, Duration
from scalescope_server.rules.parsing import parse, parse_duration
from scalescope_server.rules.spec import Rule


class Compiled(Struct, frozen=True):
    """``condition``: None where the sentence does not parse; ``error`` says why then, and the alert is an error.

    ``needs``: what its ticks must hold, and whether it needs pulses; ``lookback``: what it is restored from.
    """

    name: str
    condition: Condition | None
    terms: Terms = Terms()
    cooldown: Duration | None = None
    needs: Needs = Needs()
    lookback: Lookback = Lookback()
    error: str = ""


def compile_rule(rule: Rule) -> Compiled:
    """``rule`` as it is evaluated. Durations in its sentence go before those beside it."""
    try:
        expression = parse(rule.when)
        keep_firing = expression.keep_firing or _duration(rule.keep_firing)
        cooldown = _duration(rule.cooldown)
    except SentenceError as error:
        return Compiled(rule.name, None, error=str(error))
    condition = expression.condition
    return Compiled(
        rule.name,
        condition,
        Terms(expression.hold, keep_firing),
        cooldown,
        needs(condition),
        lookback(condition),
    )


def _duration(text: str) -> Duration | None:
    return parse_duration(text) if text else None
