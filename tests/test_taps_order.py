"""The order of gradients is put together from several windows, and claimed only where they agree."""

from __future__ import annotations

import itertools

import pytest
from scalescope.taps.backward.order import BackwardOrder, is_eager, merged


@pytest.mark.parametrize(
    ("order", "heard", "expected"),
    [
        ("", "cba", "cba"),
        ("xba", "yba", "xyba"),
        ("cba", "dba", "cdba"),
        ("cb", "ba", "cba"),
        ("cba", "ca", "cba"),
        ("cba", "z", "cbaz"),
        ("cba", "", "cba"),
        ("cba", "ab", None),
    ],
)
def test_what_is_new_comes_before_what_followed_it(order: str, heard: str, expected: str | None) -> None:
    found = merged([ord(sign) for sign in order], [ord(sign) for sign in heard])
    assert (None if found is None else "".join(map(chr, found))) == expected


def learn(*windows: str) -> str:
    """The order after windows of passes such as "cba dba": a letter is a gradient, a word a backward."""
    order, tasks = BackwardOrder(), itertools.count()
    for window in windows:
        for heard in window.split():
            task = next(tasks)
            for sign in heard:
                order.hear(ord(sign), task, whole=True)
        order.close_window()
    return "".join(map(chr, order.indexes))


def test_a_second_pass_of_a_window_is_read_from_its_own_beginning() -> None:
    assert learn("xba yba") == "xyba"


def test_another_head_in_a_later_window_finds_its_place() -> None:
    assert learn("xba", "yba") == "xyba"


def test_passes_that_contradict_each_other_have_no_order() -> None:
    assert learn("cba", "abc") == ""


def test_what_was_heard_while_not_all_were_listened_to_has_no_place_yet() -> None:
    order = BackwardOrder()
    order.hear(1, 1, whole=True)
    order.close_window()
    order.hear(2, 2, whole=False)
    order.close_window()
    assert (order.indexes, order.unplaced) == ([1], {2})


@pytest.mark.parametrize(
    ("modules", "eager"),
    [([3, 3, 2, 2, 0, 0], True), ([0, 0, 2, 2, 4, 4], False), ([0, 2, 6, 4, 6, 4, 0, 2], False), ([0, 0], True)],
)
def test_an_eager_backward_goes_down_module_by_module(modules: list[int], eager: bool) -> None:
    assert is_eager(modules) is eager
