"""What the judge has to tell, for tests of how it is told."""

from __future__ import annotations

from typing import Any

from scalescope_server.delivery.notice import Notice


def notice(**changes: Any) -> Notice:
    """A rule that fires on a run, for a culprit."""
    fields: dict[str, Any] = {
        "rule": "many skips",
        "severity": "warning",
        "run": "run-1",
        "run_name": "small gpt",
        "project": "demo",
        "happened": "fired",
        "firing": 1,
        "step": 1000,
        "at": 1_700_000_000.0,
        "first_step": 990,
        "value": 0.125,
        "culprit": "blocks.0.attn.weight",
        "scale": 65536.0,
        "condition": "skipped in 8 of 10 updates",
    }
    return Notice(**(fields | changes))
