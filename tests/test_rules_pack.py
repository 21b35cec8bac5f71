"""The rules that come with the product: each fires on what it is for, and none on a healthy training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pytest
from scalescope_server.rules.backtest import backtest
from scalescope_server.rules.compiled import compile_rule
from scalescope_server.rules.course import Start
from scalescope_server.rules.faults import faults
from scalescope_server.rules.pack import built_in
from scalescope_server.rules.parsing import parse
from scalescope_server.rules.rendering import render
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import stretch_of
from scalescope_server.rules.ticks import Tick

RULES = {rule.name.removeprefix("pack/"): rule for rule in built_in().rules}
# Updates between two that are told of: windows count those in between.
EVERY = 10
CODES = [name for name, rule in RULES.items() if rule.when.startswith("when finding(") and " and " not in rule.when]


def healthy(updates: int, seed: int = 1) -> Iterator[Tick]:
    """A scale that settles and probes, a loss that falls and jitters, layers with a few small gradients."""
    draw = random.Random(seed)
    scale = 2.0**20
    for index, step in enumerate(range(0, updates, EVERY)):
        settling = index < 4
        probed = index > 4 and index % 250 == 0
        values = {
            "scale": scale,
            "skipped": float(settling or probed),
            "loss": 2.0 + 8.0 * 0.999**index + draw.gauss(0.0, 0.05),
            "grad_norm": 1.5 * draw.lognormvariate(0.0, 0.3),
            "learning_rate": 1e-4,
            "step_ms": 100.0,
        }
        codes = frozenset({"CALIBRATION"}) if index < 24 else frozenset[str]()
        scale = scale / 2 if settling or probed else scale * 2 if index % 250 == 249 else scale
        yield Tick(0, step, 100.0 * index, values, layers(draw), ranks(scale), codes)


def layers(draw: random.Random, **other: float) -> dict[str, Mapping[str, float]]:
    """Two layers and a module; ``other`` gives the second of them another value of a measure."""
    usual = {
        "subnormal_share": draw.uniform(0.0, 0.05),
        "zero_share": draw.uniform(0.0, 0.02),
        "absorbed_share": 0.9,
        "unchanged_share": draw.uniform(0.0, 0.05),
        "update_ratio": 1e-3,
    }
    of_layers = {name: {"a.weight": value, "b.weight": other.get(name, value)} for name, value in usual.items()}
    return {**of_layers, "forward_headroom": {"a": 6.0, "b": other.get("forward_headroom", 5.0)}}


def ranks(scale: float, other: float | None = None) -> dict[str, Mapping[int, float | None]]:
    return {"scale": {0: scale, 1: scale if other is None else other}}


def fired(
    rule: Rule, ticks: Iterable[Tick], start: Start | None = None, until: float | None = None
) -> list[int | None]:
    """The updates at which it fires, and None where time alone makes it; no rule may be in error."""
    starts = () if start is None else (start,)
    found = backtest(compile_rule(rule), [stretch_of(ticks)], starts=starts, silent_after_s=60.0, until=until)
    assert found.error == ""
    return [firing.step for firing in found.firings]


def culprits(rule: Rule, ticks: Iterable[Tick]) -> list[str | int | None]:
    return [firing.culprit for firing in backtest(compile_rule(rule), [stretch_of(ticks)]).firings]


def told(updates: int, **series: Sequence[float]) -> list[Tick]:
    """Every update, each series as long as it is given."""
    return [
        Tick(0, step, float(step), {name: values[step] for name, values in series.items() if step < len(values)})
        for step in range(updates)
    ]


def sampled(updates: int, begins: int, **measures: float) -> list[Tick]:
    """Samples, which from the update ``begins`` on give one layer or module ``measures``."""
    draw = random.Random(2)
    rates = {"learning_rate": 1e-4}
    return [
        Tick(0, step, float(step), rates, layers(draw, **(measures if step >= begins else {})))
        for step in range(0, updates, EVERY)
    ]


def test_every_rule_can_be_used_and_says_why_it_is_there() -> None:
    pack = built_in()
    assert pack.version >= 1
    assert len({rule.name for rule in pack.rules}) == len(pack.rules)
    for rule in pack.rules:
        assert faults(rule, built_in=True) == []
        assert rule.name.startswith("pack/")
        assert rule.reason.endswith(".")
        assert rule.source
        assert rule.enabled
        assert render(parse(rule.when)) == rule.when


def test_every_file_of_the_pack_has_its_version() -> None:
    folder = files("scalescope_server.rules").joinpath("built_in")
    firsts = {
        next(line for line in path.read_text().splitlines() if line.startswith("version:")) for path in folder.iterdir()
    }
    assert firsts == {f"version: {built_in().version}"}


@pytest.mark.parametrize("name", RULES)
def test_none_fires_on_a_healthy_training(name: str) -> None:
    ended = Start(0, None, 119_900.0, "finished", 119_900.0)
    assert fired(RULES[name], healthy(12_000), ended, 120_000.0) == []


@pytest.mark.parametrize("name", CODES)
def test_each_named_cause_fires_with_its_finding(name: str) -> None:
    code = name.upper().replace("-", "_")
    ticks = [
        Tick(0, step, float(step), {"scale": 1.0}, findings=frozenset({code} if step > 4 else ())) for step in range(9)
    ]
    assert fired(RULES[name], ticks) == [5]


def test_a_deep_collapse_fires_with_its_finding_and_a_scale_to_match() -> None:
    ticks = [
        Tick(0, step, float(step), {"scale": 2.0**-step}, findings=frozenset({"SCALE_COLLAPSE"})) for step in range(30)
    ]
    assert fired(RULES["scale-collapse-deep"], ticks) == [25]


def test_a_streak_of_skips_fires_unless_the_scale_settles() -> None:
    skipped = [0.0] * 20 + [1.0] * 10
    assert fired(RULES["skip-streak"], told(30, skipped=skipped)) == [27]
    settling = [Tick(0, t.step, t.at, t.values, findings=frozenset({"CALIBRATION"})) for t in told(30, skipped=skipped)]
    assert fired(RULES["skip-streak"], settling) == []


def test_the_rate_of_skips_leaves_out_those_of_settling() -> None:
    one_in_ten = [float(step % 10 == 0) for step in range(2000)]
    assert fired(RULES["skip-rate"], told(2000, skipped=one_in_ten)) == [499]
    settling = [1.0] * 32 + [float(step % 100 == 0) for step in range(1968)]
    ticks = [
        Tick(0, t.step, t.at, t.values, findings=frozenset({"CALIBRATION"} if t.step < 52 else ()))
        for t in told(2000, skipped=settling)
    ]
    assert fired(RULES["skip-rate"], ticks) == []


@pytest.mark.parametrize(
    ("name", "measures", "culprit"),
    [
        ("underflow-rise", {"subnormal_share": 0.4}, "b.weight"),
        ("headroom-low", {"forward_headroom": 0.6}, "b"),
        ("absorbed-updates", {"absorbed_share": 0.9, "unchanged_share": 0.9}, None),
        ("unchanged-parameters", {"unchanged_share": 1.0}, "b.weight"),
        ("vanishing-gradients", {"subnormal_share": 0.5, "zero_share": 0.5}, "b.weight"),
        ("zero-gradients", {"zero_share": 1.0}, "b.weight"),
    ],
)
def test_what_a_layer_loses_fires_and_names_it(name: str, measures: dict[str, float], culprit: str | None) -> None:
    ticks = sampled(12_000, 8000, **measures)
    (step,) = fired(RULES[name], ticks)
    assert step is not None
    assert 8000 < step <= 10_000
    assert culprit is None or culprits(RULES[name], ticks) == [culprit]


def test_ratios_of_updates_outside_their_band_fire() -> None:
    def ticks(ratio: float, rate: float) -> list[Tick]:
        return [
            Tick(0, step, float(step), {"learning_rate": told_rate}, {"update_ratio": {"a": told, "b": told}})
            for step in range(0, 8000, EVERY)
            for told, told_rate in [(ratio, rate) if step >= 4000 else (1e-3, 1e-4)]
        ]

    assert len(fired(RULES["update-ratio-high"], ticks(0.5, 1e-4))) == 1
    assert len(fired(RULES["update-ratio-low"], ticks(1e-9, 1e-4))) == 1
    # At the end of a schedule small updates are what was asked for.
    assert fired(RULES["update-ratio-low"], ticks(1e-9, 1e-7)) == []


def test_gradients_that_stay_ten_times_as_large_fire() -> None:
    draw = random.Random(4)
    norms = [draw.lognormvariate(0.0, 0.3) * (30.0 if step >= 4000 else 1.0) for step in range(5000)]
    (step,) = fired(RULES["exploding-gradients"], told(5000, grad_norm=norms))
    assert step is not None
    assert 4000 < step < 4600


def test_a_loss_that_is_not_finite_fires() -> None:
    assert fired(RULES["loss-not-finite"], told(6, loss=[1.0, 1.0, float("nan")])) == [2]


def test_a_loss_that_spikes_more_than_once_fires() -> None:
    draw = random.Random(5)
    calm = [2.0 + draw.gauss(0.0, 0.05) for _ in range(600)]
    once = [*calm[:500], 9.0, *calm[500:]]
    assert fired(RULES["loss-spike"], told(601, loss=once)) == []
    again = [*calm[:500], 9.0, 8.0, 7.0, 6.0, *calm[504:]]
    assert fired(RULES["loss-spike"], told(600, loss=again)) == [502]


def test_a_loss_that_no_longer_falls_is_told() -> None:
    draw = random.Random(6)
    losses = [max(8.0 - step / 500, 4.0) + draw.gauss(0.0, 0.05) + step * 1e-5 for step in range(12_000)]
    (step,) = fired(RULES["loss-not-falling"], told(12_000, loss=losses))
    assert step is not None
    assert 4000 < step < 8000


def test_ranks_that_disagree_fire() -> None:
    ticks = [Tick(0, step, float(step), {}, {}, ranks(64.0, 32.0 if step > 2 else 64.0)) for step in range(5)]
    assert fired(RULES["rank-disagreement"], ticks) == [3]


@pytest.mark.parametrize(
    ("name", "start", "quiet_s"),
    [
        ("silent-trainer", Start(0, None, 9.0), 60.0),
        ("crashed-trainer", Start(0, None, 9.0, "crashed", 9.0), 5.0),
        # Its trainer lives, and no update comes.
        ("stalled-loop", Start(0, None, 610.0), 601.0),
    ],
)
def test_a_trainer_of_which_nothing_comes_fires(name: str, start: Start, quiet_s: float) -> None:
    ticks = told(10, scale=[1.0] * 10)
    assert fired(RULES[name], ticks, start, 9.0 + quiet_s) == [None]
    assert fired(RULES[name], ticks, Start(0, None, 9.0, "finished", 9.0), 9.0 + quiet_s) == []


def test_records_that_the_hook_dropped_fire() -> None:
    ticks = [Tick(0, step, float(step), {"dropped": 3.0 * (step == 700)}) for step in range(1500)]
    found = backtest(compile_rule(RULES["hook-drops-data"]), [stretch_of(ticks)])
    assert [firing.step for firing in found.firings] == [700]
    assert found.firings[0].until_step is not None


def test_every_rule_has_been_seen_to_fire() -> None:
    """The tests above name them all; a new one has its own."""
    source = Path(__file__).read_text()
    assert {name for name in RULES if f'"{name}"' not in source} == set(CODES)
