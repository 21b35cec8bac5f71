"""What people and programs are told: a title, a text, and a link to exactly that view. Pure.

Names come from trainers and rules from users: here they are one line of text each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal
from urllib.parse import quote, urlencode

from msgspec import Struct

from scalescope_server.delivery.notice import Happened, Notice, Severity
from scalescope_server.store.records import Single

# Updates shown before and after what happened, so that one sees what led to it.
AROUND = 200
LONGEST_NAME = 200
LONGEST_TEXT = 2000
# Lines of a text; the JSON has all of them.
MOST_LINES = 20
# Of a sentence that is too long so many letters at least, or there is no link.
LEAST_WORDS = 60
# Whole numbers below are written out.
EXACT = 1e15

_ORDER: Mapping[Severity, int] = {"critical": 0, "warning": 1, "info": 2}
# Controls, and what turns the direction of text or hides it.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_PLACE = re.compile(r"\{([a-z_]+)\}")


class Run(Struct, frozen=True):
    id: str
    name: str
    project: str
    url: str | None


class Told(Struct, frozen=True, kw_only=True):
    """One turn of an alert, as a webhook has it. ``key`` is the same each time it is told to this channel.

    ``unsaid``: how many firings right before it were not told of, since the alert flaps.
    """

    key: str
    happened: Happened
    rule: str
    severity: Severity
    firing: int
    step: int | None
    first_step: int | None
    at: float
    value: Single
    unit: str
    culprit: str | None
    scale: Single
    condition: str
    reason: str
    sentence: str
    url: str | None
    unsaid: int = 0


class Message(Struct, frozen=True, kw_only=True):
    """All that goes out at once: of one run, to one channel. As JSON it is the body of a webhook.

    ``key``: the idempotency key, the same however often it is sent.
    """

    key: str
    type: Literal["alerts", "test"]
    version: Literal[1] = 1
    title: str
    text: str
    severity: Severity
    url: str | None
    run: Run
    alerts: list[Told]


def message_of(key: str, notices: Sequence[Notice], keys: Sequence[str], public_url: str | None) -> Message:
    """What ``notices``, all of one run, tell under the idempotency key ``key``; the gravest alerts first.

    ``keys``: of each of them. What they tell of one alert stays in the order in which it happened.
    ``public_url``: where people reach the server, without a slash at its end; None: not known, so there are no links.
    """
    gravest: dict[str, int] = {}
    for notice in notices:
        gravest[notice.rule] = min(_ORDER[notice.severity], gravest.get(notice.rule, len(_ORDER)))
    ordered = sorted(zip(notices, keys, strict=True), key=lambda each: gravest[each[0].rule])
    told = [_told(notice, of, public_url) for notice, of in ordered]
    first = ordered[0][0]
    url = link(public_url, notices)
    return Message(
        key=key,
        type="test" if first.happened == "test" else "alerts",
        title=title([notice for notice, _ in ordered]),
        text=fitted(lines_of(told), url),
        severity=min((notice.severity for notice in notices), key=_ORDER.__getitem__),
        url=url,
        run=Run(first.run, first.run_name, first.project, _page(public_url, first.run)),
        alerts=told,
    )


def lines_of(told: Sequence[Told]) -> list[str]:
    """A line for each turn."""
    return [told[0].sentence] if len(told) == 1 else [f"{one.severity}: {one.sentence}" for one in told]


def fitted(lines: Sequence[str], url: str | None, fits: Callable[[str], bool] = lambda _: True) -> str:
    """As many of ``lines`` as fit, how many were left out, and the link.

    Where not even the first fits it is cut, and where the link leaves no room for a word it is left out.
    """
    for shown in range(min(len(lines), MOST_LINES), 0, -1):
        if fits(text := _text(lines[:shown], len(lines) - shown, url)):
            return text
    rest = len(lines) - 1
    for more, to in ((rest, url), (rest, None), (0, None)):
        made = partial(_with_line, more=more, url=to)
        if fits(made(cut(lines[0], LEAST_WORDS))):
            break
    return _longest(lines[0], made, fits)


def _longest(line: str, made: Callable[[str], str], fits: Callable[[str], bool]) -> str:
    """``made`` of as much of ``line`` as fits."""
    least, most = 1, len(line)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(made(cut(line, middle))) else (least, middle - 1)
    return made(cut(line, least))


def _with_line(line: str, more: int, url: str | None) -> str:
    return _text([line], more, url)


def _text(lines: Sequence[str], more: int, url: str | None) -> str:
    return "\n".join([*lines, *([f"and {more} more"] if more else []), *([] if url is None else [url])])


def cut(text: str, longest: int) -> str:
    """``text``, or its beginning with a mark that there is more."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def title(notices: Sequence[Notice]) -> str:
    """What happened in one line, of ``notices`` of one run."""
    first = notices[0]
    run = one_line(first.run_name or first.run)
    where = f"{run} ({one_line(first.project)})" if first.project else run
    if first.happened == "test":
        return "Scalescope: a test"
    if len(notices) == 1:
        state = "resolved" if first.happened == "resolved" else first.severity
        return f"{state}: {one_line(first.rule)} on {where}"
    counts = Counter("resolved" if notice.happened == "resolved" else notice.severity for notice in notices)
    return f"{len(notices)} alerts on {where}: " + ", ".join(f"{count} {name}" for name, count in counts.items())


def sentence(notice: Notice) -> str:
    """What happened, the numbers and the culprit."""
    if notice.happened == "test":
        return "This is a test: whoever reads it is told of alerts on this channel."
    if notice.text and notice.happened == "fired":
        return fill(notice.text, notice) + _unsaid(notice)
    where = f" at update {notice.step:,}" if notice.step is not None else ""
    if notice.happened == "resolved":
        return f"{one_line(notice.rule)} is over{where}."
    parts = [f"{one_line(notice.rule)} fires{where}"]
    if notice.condition:
        parts.append(f": {one_line(notice.condition, LONGEST_TEXT)}")
    told = [("value", value_of(notice)), ("culprit", one_line(notice.culprit or ""))]
    numbers = ", ".join(f"{name} {text}" for name, text in told if text)
    parts.append(f" ({numbers})." if numbers else ".")
    if notice.scale is not None:
        parts.append(f" Loss scale {number(notice.scale)}.")
    return "".join(parts) + _unsaid(notice)


def _unsaid(notice: Notice) -> str:
    times = "once" if notice.unsaid == 1 else f"{notice.unsaid:,} times"
    return f" It flaps: before that it fired {times} more than was told." if notice.unsaid else ""


def fill(template: str, notice: Notice) -> str:
    """``template`` with its places in braces filled; what is none of them stays as it is."""
    known = {
        "value": value_of(notice),
        "rule": notice.rule,
        "severity": notice.severity,
        "run": notice.run_name or notice.run,
        "project": notice.project,
        "step": "" if notice.step is None else str(notice.step),
        "culprit": notice.culprit or "",
        "scale": number(notice.scale),
        "condition": notice.condition,
    }
    return _PLACE.sub(lambda found: one_line(known.get(found[1], found[0])), template)[:LONGEST_TEXT]


def link(public_url: str | None, notices: Sequence[Notice]) -> str | None:
    """The run's page, zoomed to where ``notices`` (of one run) happened."""
    page = _page(public_url, notices[0].run)
    steps = [step for notice in notices for step in (notice.first_step, notice.step) if step is not None]
    if page is None or not steps:
        return page
    return f"{page}?{urlencode({'from': max(min(steps) - AROUND, 0), 'to': max(steps) + AROUND + 1})}"


def value_of(notice: Notice) -> str:
    """What the condition compared, as its rule writes it, "" for nothing."""
    value, unit = notice.value, notice.unit
    if not unit or value is None or isinstance(value, str):
        return number(value)
    return f"{number(100 * value)}%" if unit == "%" else f"{number(value)} {unit}"


def number(value: Single) -> str:
    """A number as people read it, "" for none."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if abs(value) < EXACT and value.is_integer() else f"{value:.6g}"


def one_line(text: str, longest: int = LONGEST_NAME) -> str:
    """Text from elsewhere in one line, without what is not seen, and not too long."""
    return cut(_UNSEEN.sub(" ", text).strip(), longest)


def _told(notice: Notice, key: str, public_url: str | None) -> Told:
    return Told(
        key=key,
        happened=notice.happened,
        rule=notice.rule,
        severity=notice.severity,
        firing=notice.firing,
        step=notice.step,
        first_step=notice.first_step,
        at=notice.at,
        value=notice.value,
        unit=notice.unit,
        culprit=notice.culprit,
        scale=notice.scale,
        condition=notice.condition,
        reason=notice.reason,
        sentence=sentence(notice),
        url=link(public_url, [notice]),
        unsaid=notice.unsaid,
    )


def _page(public_url: str | None, run: str) -> str | None:
    return None if public_url is None or not run else f"{public_url}/runs/{quote(run, safe='')}"
