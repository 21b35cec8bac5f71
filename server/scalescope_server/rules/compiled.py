"""A rule made ready to be evaluated, or the sentence why it cannot be."""

from __future__ import annotations

from functools import lru_cache

import msgspec
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
    return msgspec.structs.replace(_compiled(rule.when, rule.keep_firing, rule.cooldown), name=rule.name)


# More than most rule books hold: whoever lists one asks of each rule whether it can be evaluated.
@lru_cache(maxsize=2048)
def _compiled(when: str, keep_firing: str, cooldown: str) -> Compiled:
    try:
        expression = parse(when)
        keeping = expression.keep_firing or _duration(keep_firing)
        cooling = _duration(cooldown)
    except SentenceError as error:
        return Compiled("", None, error=str(error))
    condition = expression.condition
    terms = Terms(expression.hold, keeping)
    return Compiled("", condition, terms, cooling, needs(condition), lookback(condition))


def _duration(text: str) -> Duration | None:
    return parse_duration(text) if text else None
