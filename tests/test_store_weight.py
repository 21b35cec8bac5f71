"""What a record weighs: what it takes decoded, whatever the wire made of it."""

from __future__ import annotations

import sys

import numpy as np
from scalescope.numerics.exponents import BINS, MIN_EXPONENT
from scalescope.packing import unpack
from scalescope.wire import encode
from scalescope_server.store.weight import weight_of

from tests.batches import Dictation, histograms


def test_a_sample_weighs_what_its_table_takes() -> None:
    exponents = np.arange(MIN_EXPONENT, MIN_EXPONENT + BINS)
    sample = Dictation().sample(0, histograms(*([exponents.tolist()] * 200)))
    table = unpack(sample.table)
    held = sum(column.nbytes for column in (table.counts, table.zero, table.inf, table.nan, table.amax))
    size = len(encode(sample))
    assert size < 5000
    assert held < weight_of(sample, size) < 1.1 * held


def test_a_sample_of_few_exponents_weighs_what_it_takes_among_others() -> None:
    few, many = (Dictation().sample(0, histograms(*([list(range(used))] * 400))) for used in (1, BINS // 2))
    held = 8 * 400 * (BINS // 4)
    assert held < weight_of(few, len(encode(few))) < 1.2 * held
    assert 2 * held < weight_of(many, len(encode(many))) < 2.2 * held


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
