"""One thread beside the writer's: what needs no database and mostly does without Python's lock runs there meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def aside(work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Future[Result]:
    """Have ``work`` done, in the order in which it was given. It must not wait for anything that is done here."""
    return _thread().submit(work, *given, **named)


@cache
def _thread() -> ThreadPoolExecutor:
    # Kept: what packs and unpacks belongs to a thread, and making it takes longer than a batch.
    return ThreadPoolExecutor(1, thread_name_prefix="scalescope-aside")


if hasattr(os, "register_at_fork"):  # not on Windows
    # A child has the executor of its parent, but not its thread.
    os.register_at_fork(after_in_child=_thread.cache_clear)
