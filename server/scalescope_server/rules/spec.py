"""What a rule is, whoever wrote it: a form, a file, the built-in pack or a call of the API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["info", "warning", "critical"]

# What the names of built-in rules begin with, and no other's.
PACK_PREFIX = "pack/"


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence, where it applies, and what is told when it fires.

    ``name``: unique in a server. ``when``: the sentence (see ``docs/rules.md``). ``keep_firing``, ``cooldown``:
    durations such as "50 steps" or "5 min", "" for none; within the cool-down no second notification is sent.
    ``project``, ``run`` (its name), ``tag``: globs of what the rule applies to. ``text``: a template of
    ``{value}``, ``{rule}``, ``{run}``, ``{project}``, ``{step}``, ``{culprit}`` and ``{scale}``, "" for the
    product's own sentence. ``reason``: why it exists; ``source``: what its thresholds rest on.
    """

    name: str
    when: str
    severity: Severity = "warning"
    keep_firing: str = ""
    project: str = "*"
    run: str = "*"
    tag: str = "*"
    text: str = ""
    channels: tuple[str, ...] = ()
    cooldown: str = ""
    reason: str = ""
    source: str = ""
    enabled: bool = True
