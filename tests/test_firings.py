"""When alerts fired: read from what they went through, and drawn as bands behind the lines of every chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
import plotly.graph_objects as go
import pytest
from scalescope_server.figures.answers import draw_overview
from scalescope_server.figures.chart import Chart, Look
from scalescope_server.figures.palette import DARK
from scalescope_server.figures.reads import Wanted
from scalescope_server.store import tables
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.firings import MAX_FIRINGS, Firing, _update_before
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.notices import ended
from sqlalchemy import select

from tests.batches import STARTED_AT
from tests.test_judge_pulses import SILENT, judge_of, pass_time, take_up
from tests.watched import RUN, Clock, Training, add_rule, look

pytestmark = pytest.mark.both_engines


MINE = Firing(rule="mine", severity="warning", first_step=4, last_step=8, culprit=None)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Clock())) as opened:
        yield opened


@pytest.fixture
def judged(store: Store) -> Store:
    """A run on which one rule fired at 4, was over at 8, and fires again since 10."""
    add_rule(store, "when scale < 1 for 2 steps keep firing for 2 steps")
    training = Training(store)
    training.tell(2.0, 0.5, 2.0, 0.5, 0.5, 2.0, 0.5, 2.0, 2.0, 0.5, 0.5, 0.5)
    look(store, Keeper(store.reader, Clock()))
    return store


def drawn(store: Store) -> dict[str, Chart]:
    wanted = Wanted(Look(DARK, compact=False), 1000)
    return {chart.name: chart for chart in draw_overview(store.reader, RUN, wanted, None).charts}


def test_a_firing_is_from_where_it_began_to_where_it_was_over(judged: Store) -> None:
    again = Firing(rule="mine", severity="warning", first_step=10, last_step=None, culprit=None)
    assert judged.reader.firings(RUN) == [MINE, again]
    assert judged.reader.firings(RUN, start=9) == [again]
    assert judged.reader.firings(RUN, stop=10) == [MINE]
    assert judged.reader.firings(RUN, start=8, stop=9) == [MINE]
    assert judged.reader.firings(RUN, stop=4) == []


def test_what_fires_while_no_update_comes_is_at_the_last_update_before(store: Store) -> None:
    add_rule(store, SILENT)
    clock = Clock()
    judge, training = judge_of(store, clock), Training(store)
    training.tell(*[1.0] * 5, at=clock())
    take_up(judge)
    pass_time(judge, clock, 610)
    waits = Firing(rule="mine", severity="warning", first_step=4, last_step=None, culprit=None, by_time=True)
    assert store.reader.firings(RUN) == [waits]
    assert (store.reader.firings(RUN, start=3), store.reader.firings(RUN, stop=4)) == ([waits], [])
    (heads,) = [trace for trace in go.Figure(drawn(store)["scale"].figure).data if trace.name == "alerts"]
    assert list(heads.text) == ["mine fired after update 4 while none came, it still does"]
    training.tell(1.0, 1.0, at=clock())
    take_up(judge)
    over = msgspec.structs.replace(waits, last_step=5)
    assert store.reader.firings(RUN) == [over]
    assert (store.reader.firings(RUN, start=6), store.reader.firings(RUN, stop=5)) == ([], [over])


def test_a_firing_that_a_switch_ended_lasts_until_then(judged: Store) -> None:
    (rule,) = judged.reader.rule_book().rules
    judged.writer.switch_rule(rule.id, enabled=False, at=STARTED_AT + 1e6, ending=ended).result()
    assert [(firing.first_step, firing.last_step) for firing in judged.reader.firings(RUN)] == [(4, 8), (10, 11)]


def test_the_last_update_before_a_time_is_found_wherever_it_lies(store: Store) -> None:
    training = Training(store)
    training.tell(*[1.0] * 9)
    with store.reader.reading() as connection:
        times = [row.at for row in connection.execute(select(tables.step.c.at).order_by(tables.step.c.step))]
        run = connection.execute(select(tables.run.c.key)).scalar_one()
        for step, at in enumerate(times):
            assert _update_before(connection, run, at, 8) == step
            assert _update_before(connection, run, at + 0.5, 8) == step
        assert _update_before(connection, run, times[0] - 1, 8) == 0


def test_of_very_many_firings_the_newest_are_told(store: Store) -> None:
    add_rule(store, "when scale < 1")
    Training(store).tell(*[2.0, 0.5] * (MAX_FIRINGS + 5))
    look(store, Keeper(store.reader, Clock()))
    found = store.reader.firings(RUN)
    assert [firing.first_step for firing in found] == list(range(11, 2 * MAX_FIRINGS + 11, 2))


def test_each_chart_has_a_band_for_each_firing_and_says_which(judged: Store) -> None:
    for chart in drawn(judged).values():
        if chart.missing is not None:
            continue
        figure = go.Figure(chart.figure)
        assert [(shape.x0, shape.x1) for shape in figure.layout.shapes[::2]] == [(3.5, 8.5), (9.5, 11.5)]
        (heads,) = [trace for trace in figure.data if trace.name == "alerts"]
        assert list(heads.x) == [4, 10]
        assert heads.text[1] == "mine fired at update 10, it still does"
        assert chart.summary.endswith("Alerts fired 2 times here.")
        assert "an alert fired" in [key.label for key in chart.legend]


def test_a_run_on_which_nothing_fired_has_no_bands(store: Store) -> None:
    Training(store).tell(2.0, 2.0)
    look(store, Keeper(store.reader, Clock()))
    assert all("shapes" not in chart.figure["layout"] for chart in drawn(store).values())  # type: ignore[operator]  # JSON
