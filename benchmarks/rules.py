"""What rules cost: an update by the width of a window and by the length of the run, 500 rules on each of 50 runs, a
sample of 148 layers under the built-in rules, and a backtest over a million updates.

Nothing is read or stored here: the updates are in memory. CPU time of one process, the least of the rounds.

    python -m benchmarks.rules [--updates 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from scalescope_server.rules.alert import Alert, Transition
from scalescope_server.rules.backtest import backtest
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.evaluating import Evaluator
from scalescope_server.rules.expression import Condition
from scalescope_server.rules.pack import built_in
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import Sampled, Stretch, Told
from scalescope_server.rules.watch import Watch

# As many as a backtest reads at once.
PIECE = 65_536
WIDTHS = (10, 1_000, 100_000)
TIMED = 10_000
FUNCTIONS = ("count(skipped", "changes(scale", "sum(loss", "mean(loss", "max(loss", "zscore(loss", "median(loss")
BACKTESTED = (
    "when scale < 1",
    "when changes(scale, 200 steps) >= 6 for 50 steps",
    "when skipped in 8 of 10 updates",
    "when mean(loss, 5 min) > 2 * mean(loss, 1 h)",
    "when grad_norm > 4 * median(grad_norm, 500 steps)",
    "when zscore(loss, 500 steps) > 6",
)
RULES, RUNS = 500, 50
LAYERS, SAMPLES, EVERY = 148, 1_000, 10


def run_of(updates: int) -> Stretch:
    """A run with a scale that moves, one skip in a hundred, and a loss and a norm that are drawn anew."""
    random = np.random.default_rng(0)
    always = np.ones(updates, np.bool_)
    series = {
        "scale": np.exp2(8.0 + random.integers(0, 8, updates // 500 + 1)).repeat(500)[:updates],
        "skipped": (random.random(updates) < 0.01).astype(np.float64),
        "loss": random.lognormal(0.0, 0.3, updates),
        "grad_norm": random.lognormal(0.0, 0.3, updates),
    }
    told = {name: Told(np.asarray(values, np.float64), always) for name, values in series.items()}
    return Stretch(np.zeros(updates, np.int64), np.arange(updates), np.arange(0.0, 0.25 * updates, 0.25), told)


def rule_of(sentence: str) -> Compiled:
    rule = compile_rule(Rule("a rule", sentence))
    if rule.error:
        raise SystemExit(f"{sentence}: {rule.error}")
    return rule


def condition_of(sentence: str) -> Condition:
    condition = rule_of(sentence).condition
    assert condition is not None
    return condition


def least(rounds: int, action: Callable[[], object]) -> float:
    """CPU seconds of the fastest of the rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return min(found)


def by_width_and_length(run: Stretch) -> None:
    print("\nmicroseconds of an update: by width of the window (in updates), and late in the run beside early")
    print(f"{'':16}" + "".join(f"{f'{width:,}: early':>18}{'late':>8}" for width in WIDTHS))
    for function in FUNCTIONS:
        told = [_early_and_late(condition_of(f"when {function}, {width} steps) > 1e9"), run) for width in WIDTHS]
        print(f"{function + ')':16}" + "".join(f"{early:>18.2f}{late:>8.2f}" for early, late in told))


def _early_and_late(condition: Condition, run: Stretch) -> tuple[float, float]:
    """Microseconds of an update once the widest window is full, and at the end of the run."""
    evaluator = Evaluator([condition])
    early, late = max(WIDTHS), len(run) - TIMED
    evaluator.stretch(run.part(0, early))
    first = _update_us(evaluator, run.part(early, early + TIMED))
    for start in range(early + TIMED, late, PIECE):
        evaluator.stretch(run.part(start, min(start + PIECE, late)))
    return first, _update_us(evaluator, run.part(late, late + TIMED))


def _update_us(evaluator: Evaluator, part: Stretch) -> float:
    ticks = list(part.ticks())
    began = time.process_time()
    for tick in ticks:
        evaluator.tick(tick)
    return 1e6 * (time.process_time() - began) / len(ticks)


def backtests(run: Stretch, rounds: int) -> None:
    print(f"\nCPU seconds of a backtest over {len(run):,} updates")
    pieces = [run.part(start, min(start + PIECE, len(run))) for start in range(0, len(run), PIECE)]
    for sentence in BACKTESTED:
        rule = rule_of(sentence)
        seconds = least(rounds, partial(backtest, rule, pieces))
        print(
            f"{sentence:56}{seconds:>8.2f}   fired {len(backtest(rule, pieces[:1]).firings)} times in the first piece"
        )


def many_rules(run: Stretch) -> None:
    rules = [rule_of(sentence) for sentence in _sentences(RULES)]
    alone = sum(Evaluator([rule.condition]).size for rule in rules if rule.condition is not None)
    together = Evaluator([rule.condition for rule in rules if rule.condition is not None]).size
    print(f"\n{RULES} rules on each of {RUNS} runs; {together:,} signals are worked out where {alone:,} are written")
    for updates in (1, 10, 100):
        watches = [Watch(rules) for _ in range(RUNS)]
        for watch in watches:
            watch.stretch(run.part(0, 1_000), hear)
        part = run.part(1_000, 1_000 + updates)
        began = time.process_time()
        for watch in watches:
            watch.stretch(part, hear)
        seconds = time.process_time() - began
        print(f"{updates:>5} updates at once: {1e6 * seconds / RUNS / updates:>8.0f} us of CPU an update of a run")


def _sentences(count: int) -> list[str]:
    """Rules as people write them: the same series and windows, other thresholds."""
    forms = (
        "when changes(scale, 200 steps) >= {n} for 50 steps",
        "when grad_norm > {n} * median(grad_norm, 500 steps)",
        "when mean(loss, 200 steps) > {n}",
        "when skipped in {n} of 1000 updates",
        "when scale < {n}",
        "when loss is not finite or loss > {n}",
        "when zscore(loss, 500 steps) > {n}",
        "when max(grad_norm, 100 steps) > {n} and scale > 1",
        "when rate(skipped, 1000 steps) > {n}%",
        "when finding(SCALE_THRASH) and scale < {n}",
    )
    return [forms[index % len(forms)].format(n=2 + index // len(forms)) for index in range(count)]


def layers_of(samples: int) -> Stretch:
    """A run of which every tenth update is sampled, with all that the built-in rules ask of layers."""
    random = np.random.default_rng(0)
    names, at = tuple(f"blocks.{layer}.weight" for layer in range(LAYERS)), np.arange(0, samples * EVERY, EVERY)
    measures = {measure for rule in built_in().rules for measure in compile_rule(rule).needs.measures}
    known = np.ones((samples, LAYERS), np.bool_)
    layers = {
        measure: Sampled(names, at, random.integers(0, 4096, (samples, LAYERS)) / 4096, known)
        for measure in sorted(measures)
    }
    return msgspec.structs.replace(run_of(samples * EVERY), layers=layers)


def of_layers(rounds: int) -> None:
    rules = [rule for rule in map(compile_rule, built_in().rules) if rule.needs.measures]
    run = layers_of(SAMPLES)
    print(f"\n{len(rules)} built-in rules over {LAYERS} layers; CPU milliseconds of a sample")
    for updates in (EVERY, 100 * EVERY, len(run)):
        parts = [run.part(start, start + updates) for start in range(0, len(run), updates)]
        seconds = least(rounds, partial(_watch_all, rules, parts))
        print(f"{updates:>6} updates at once: {1e3 * seconds / SAMPLES:>8.2f}")


def _watch_all(rules: Sequence[Compiled], parts: Sequence[Stretch]) -> None:
    watch = Watch(rules)
    for part in parts:
        watch.stretch(part, hear)


def hear(_: int, alert: Alert, __: Transition) -> Alert:
    return alert


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    run = run_of(asked.updates)
    backtests(run, asked.rounds)
    many_rules(run)
    of_layers(asked.rounds)
    by_width_and_length(run)


if __name__ == "__main__":
    main()
