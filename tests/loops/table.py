"""The table in the docs, written by what its loops have shown: ``python -m tests.loops.table``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.loops.catalogue import Entry, outcome
from tests.loops.families import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"

_HEAD = """\
# Every loop people write

Each row is a real torch loop in `tests/loops`. It runs three times from the same seed: bare; bare, with the truth
counted beside it by plain arithmetic (`isfinite` on the gradients before anybody has unscaled or clipped them, the
scaler's own getters, a count of the backward passes, `numpy.frexp` on every gradient, weights after less weights
before); and watched by the hook. Then

- loss, weights, buffers, optimizer state, scaler state and the state of the random numbers are the same, bit for bit;
- what the hook recorded is what was counted;
- every hook, class and function that the hook touched is what it was before.

*Recorded* says what was compared with the count. *Passed* is written by the tests, which fail where this page and what
they found differ. A loop that torch refuses to run on a CPU is listed with torch's own words, which the tests provoke
with the hook and without it.
"""


def page() -> str:
    """The whole page. Runs what was not run in this process yet; AssertionError where a loop does not pass."""
    return "\n".join([_HEAD, *(line for family in FAMILIES for line in _section(family.title, family.entries))])


def _section(title: str, entries: Iterable[Entry]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| loop | what it is | recorded | passed |\n|---|---|---|---|"
    for entry in entries:
        words = _cell("; ".join(outcome(entry)))
        recorded, passed = (words, "yes") if entry.runs else ("", f"cannot run here: `{words}`")
        yield f"| {_cell(entry.name)} | {_cell(entry.what)} | {recorded} | {passed} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
