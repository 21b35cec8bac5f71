"""Methods of a library's objects, heard and put back."""

from __future__ import annotations

import copy
import pickle

from scalescope.taps.library.replaced import Given, Heard, Method, listener


class Counter:
    """Something of a library's."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int, *, times: int = 1) -> int:
        self.total += number * times
        return self.total


class Ear:
    """Hears each call before it is made."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def around(self, own: Method, *args: Given, **kwargs: Given) -> Given:
        self.heard.append(args[0])
        return own(*args, **kwargs)


def test_a_method_is_heard_and_answers_as_ever() -> None:
    counter, ear = Counter(), Ear()
    Heard(counter, "add", ear.around)
    assert counter.add(2, times=3) == 6
    assert (ear.heard, listener(counter, "add")) == ([2], ear)


def test_removed_it_leaves_nothing_behind() -> None:
    counter, ear = Counter(), Ear()
    heard = Heard(counter, "add", ear.around)
    heard.remove()
    heard.remove()
    assert vars(counter) == {"total": 0}
    assert listener(counter, "add") is None


def test_what_hung_there_before_hangs_there_again() -> None:
    counter = Counter()
    before = counter.add
    counter.add = before  # type: ignore[method-assign]
    Heard(counter, "add", Ear().around).remove()
    assert vars(counter)["add"] is before


def test_what_was_hung_over_it_stays_and_is_passed_on() -> None:
    counter, ear = Counter(), Ear()
    heard = Heard(counter, "add", ear.around)
    over = counter.add
    counter.add = lambda number, **kwargs: over(number + 1, **kwargs)  # type: ignore[method-assign]
    heard.remove()
    assert counter.add(1) == 2
    assert ear.heard == []


def test_copies_have_a_method_of_their_own() -> None:
    counter, ear = Counter(), Ear()
    Heard(counter, "add", ear.around)
    for other in (copy.deepcopy(counter), pickle.loads(pickle.dumps(counter))):
        assert other.add(5) == 5
    assert (counter.total, ear.heard) == (0, [])
