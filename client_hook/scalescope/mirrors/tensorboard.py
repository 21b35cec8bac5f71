"""TensorBoard: a ``SummaryWriter`` of torch's or of tensorboardX. Its step is the number of the attempted update."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from scalescope.mirrors.mirror import Finding, Point

# What Markdown, which its text page renders, takes for a sign of its own.
_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|])")


class TensorBoardMirror:
    """Scalars and a text page below ``scalescope/``, each with the time at which its update closed."""

    def __init__(self, writer: Any) -> None:  # noqa: ANN401 - either library's, by what it has
        self._writer = writer

    def scalars(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(f"scalescope/{name}", value, point.step, walltime=point.at)
        self._writer.flush()

    def finding(self, finding: Finding) -> None:
        state = "withdrawn" if finding.withdrawn else finding.severity
        lines = [f"**{finding.code}** ({state})", finding.sentence, finding.advice]
        text = "\n\n".join([lines[0], *map(_escaped, lines[1:])])
        self._writer.add_text(f"scalescope/findings/{finding.code}", text, finding.first_step)
        self._writer.flush()


def _escaped(text: str) -> str:
    return _SIGNS.sub(r"\\\1", text)
