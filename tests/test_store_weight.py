"""What a record weighs: what it takes decoded, whatever the wire made of it."""

from __future__ import annotations

import sys

from scalescope.numerics.exponents import Histograms
from scalescope.packing import unpack
from scalescope.wire import encode
from scalescope_server.store.weight import weight_of

from tests.batches import Dictation


def test_a_sample_weighs_what_its_table_takes() -> None:
    sample = Dictation().sample(0, Histograms.empty(1000))
    table = unpack(sample.table)
    held = sum(column.nbytes for column in (table.counts, table.zero, table.inf, table.nan, table.amax))
    size = len(encode(sample))
    assert size < 1000
    assert held < weight_of(sample, size) < 1.1 * held


def test_updates_weigh_by_their_number_even_where_nothing_is_told_of_them() -> None:
    say = Dictation()
    few, many = say.steps(0, 1), say.steps(1, 50_000)
    assert weight_of(few, len(encode(few))) < 20_000
    assert weight_of(many, len(encode(many))) > 50_000_000


def test_parameters_and_modules_weigh_by_their_number_however_short_their_names() -> None:
    few, many = Dictation().layout(("a", None)), Dictation().layout(modules=[f"{index:x}" for index in range(20_000)])
    assert weight_of(few, len(encode(few))) < 20_000
    assert weight_of(many, len(encode(many))) > 20_000_000


def test_json_weighs_what_its_objects_take() -> None:
    event = Dictation().event(0, data='{"nested":[' + ",".join(["{}"] * 5000) + "]}")
    objects = 5000 * sys.getsizeof({})
    assert objects < weight_of(event, len(encode(event))) < 2 * objects


def test_a_record_that_tells_nothing_weighs_more_than_its_frame() -> None:
    tally = Dictation().tally(0)
    assert weight_of(tally, len(encode(tally))) > 4096
