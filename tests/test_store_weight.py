"""What a record weighs: what it takes decoded, whatever the wire made of it."""

from __future__ import annotations

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


def test_everything_else_weighs_more_than_its_frame() -> None:
    assert weight_of(Dictation().event(0), 1000) > 1000
