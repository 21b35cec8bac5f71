"""Answers that are compressed for whoever takes that; to be made in a reading thread, since it takes a millisecond."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from typing import Annotated, ParamSpec

from fastapi import Header, Response

from scalescope_server.answers import json_answer
from scalescope_server.rooms import ReadingRoom

# Below it a packet holds the answer either way.
_WORTH_IT = 1024
# The fastest: the next levels take three times as long for a fifth less.
_LEVEL = 1

Inputs = ParamSpec("Inputs")
AcceptedHere = Annotated[str, Header(alias="accept-encoding", include_in_schema=False)]


def takes_gzip(accepted: str) -> bool:
    """Whether a browser said so; a weight of nothing is a no."""
    return re.search(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", accepted) is not None


async def compressed_answer(
    room: ReadingRoom, accepted: str, call: Callable[Inputs, object], /, *given: Inputs.args, **named: Inputs.kwargs
) -> Response:
    """What ``call`` returns, as JSON. ``accepted``: the request's header ``accept-encoding``."""

    def answered() -> Response:
        answer = json_answer(call(*given, **named))
        answer.headers["vary"] = "accept-encoding"
        if len(answer.body) < _WORTH_IT or not takes_gzip(accepted):
            return answer
        body = gzip.compress(answer.body, _LEVEL, mtime=0)
        packing = {"content-encoding": "gzip", "content-length": str(len(body))}
        return Response(body, headers={**answer.headers, **packing})

    return await room.read(answered)
