"""After a probe everything is as it was, bit for bit, and the training has not noticed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scalescope import wire
from torch import nn
from torch.nn.utils import parametrizations

from tests.small_training import Course, Watched, columns, events, fp16, samples, watching

# The numbers of numpy that everybody draws from: what a user's code may use, a probe must leave alone.
LEGACY = np.random.mtrand._rand
UPDATES = 20
MICRO_BATCHES = 2


class Noisy(nn.Module):
    """Everything that a forward may change: buffers, random numbers of three kinds, attributes, a power iteration."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.3)
        self.second = parametrizations.spectral_norm(nn.Linear(16, 16))
        self.last = nn.Linear(16, 8)
        self.calls = 0
        self.hidden = torch.zeros(())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.hidden = self.dropout(self.norm(self.first(batch)))
        factor = 1 + 0.01 * (random.random() + LEGACY.random_sample() + 0.001 * self.calls)
        result: torch.Tensor = self.last(torch.relu(self.second(self.hidden))) * factor
        return result


class Training:
    """One training of ``Noisy``, seeded in everything."""

    def __init__(self) -> None:
        random.seed(0)
        LEGACY.seed(0)
        self.model = Noisy()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        self.batches = torch.randn(UPDATES * MICRO_BATCHES, 6, 8)
        self.losses: list[float] = []

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.model(batch).float() - 1).square().mean()
        return loss

    def run(self, midway: Callable[[int], object] = bool, between: Callable[[int], object] = bool) -> None:
        """``midway`` is called between the micro-batches of each update, ``between`` after it."""
        for update in range(UPDATES):
            self.optimizer.zero_grad()
            for part in range(MICRO_BATCHES):
                with fp16():
                    loss = self.loss(self.batches[update * MICRO_BATCHES + part])
                self.scaler.scale(loss).backward()
                self.losses.append(loss.item())
                if part == 0:
                    midway(update)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            between(update)

    def outcome(self) -> dict[str, object]:
        state = {**self.model.state_dict(), **{f"grad.{n}": p.grad for n, p in self.model.named_parameters()}}
        momenta = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        return {
            "losses": self.losses,
            "state": state,
            "momenta": momenta,
            "scaler": self.scaler.state_dict(),
            "draws": (torch.rand(4), random.random(), LEGACY.random_sample()),
            "calls": self.model.calls,
        }


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def told(records: list[wire.Record]) -> dict[str, object]:
    """What was recorded of the training itself, without times."""
    found = columns(records)
    return {
        "columns": {name: values for name, values in found.items() if not name.endswith("_ms")},
        "windows": [window.data for record in records if isinstance(record, wire.Steps) for window in record.windows],
        "skips": events(records, "skip"),
        "growths": events(records, "growth"),
        "tallies": [(r.step, r.subject, r.indexes, r.columns) for r in records if isinstance(r, wire.Tally)],
        "samples": {step: (s.micro_batches, s.table, s.parameters) for step, s in samples(records).items()},
    }


def watch(training: Training) -> Any:
    return watching(training.model, training.optimizer, training.scaler, every=3)


def probe(training: Training, ears: Watched, seen: list[float], **options: bool) -> Callable[[int], None]:
    def at(update: int) -> None:
        batch = training.batches[(update + 1) % UPDATES]
        result = ears.tap.probe(
            lambda: training.loss(batch), dtype=torch.float16, compare_update=options.get("compare", False)
        )
        assert result is not None
        seen.append(result.loss)

    return at


@pytest.mark.parametrize("compare", [False, True], ids=["gradients", "with-update"])
@pytest.mark.parametrize("moment", ["midway", "between"])
def test_a_training_with_probes_is_bit_identical_to_one_without(moment: str, compare: bool) -> None:
    plain = Training()
    plain.run()
    outcome = plain.outcome()
    watched = Training()
    with watch(watched) as ears:
        watched.run()
        quiet = ears.end()
    assert alike(watched.outcome(), outcome)
    probed = Training()
    with watch(probed) as ears:
        seen: list[float] = []
        probed.run(**{moment: probe(probed, ears, seen, compare=compare)})
        records = ears.end()
    assert len(seen) == sum(isinstance(record, wire.Probe) for record in records) == UPDATES
    assert alike(probed.outcome(), outcome)
    # Nor has any of our ears heard it.
    assert told(records) == told(quiet)


def test_another_scopes_taps_hear_nothing_of_a_probe_either() -> None:
    training = Training()

    def recorded(*, probing: bool) -> dict[str, object]:
        other = Course(precision=fp16)

        def both() -> torch.Tensor:
            second: torch.Tensor = other.model(other.batches[0]).float().mean()
            return training.loss(training.batches[0]) + second

        with watch(training) as ears, watching(other.model, other.optimizer, every=3) as others:
            if probing:
                assert ears.tap.probe(both, dtype=torch.float16) is not None
            other.run(UPDATES)
            return told(others.end())

    assert recorded(probing=True) == recorded(probing=False)


def test_gradients_stay_the_same_tensors_uncounted_and_hooks_on_parameters_hear_nothing() -> None:
    training, heard = Training(), []
    with watch(training) as ears:
        training.loss(training.batches[0]).backward()
        training.model.last.bias.grad = None
        before = {
            name: (
                parameter,
                parameter.grad,
                parameter._version,
                parameter.grad is not None and parameter.grad._version,
            )
            for name, parameter in training.model.named_parameters()
        }
        training.model.first.weight.register_hook(lambda _: heard.append("hook"))
        training.model.first.weight.register_post_accumulate_grad_hook(lambda _: heard.append("accumulated"))
        buffers = {name: (buffer, buffer._version) for name, buffer in training.model.named_buffers()}
        probe(training, ears, [])(0)
    for name, parameter in training.model.named_parameters():
        known, gradient, version, gradient_version = before[name]
        assert parameter is known
        assert parameter.grad is gradient
        assert parameter._version == version
        assert gradient is None or gradient._version == gradient_version
    for name, buffer in training.model.named_buffers():
        assert buffer is buffers[name][0]
        assert buffer._version == buffers[name][1]
    assert heard == []


class GaveUpError(Exception):
    pass


@pytest.mark.parametrize("error", [GaveUpError, KeyboardInterrupt])
def test_a_loss_function_that_raises_halfway_leaves_everything_as_it_was(error: type[BaseException]) -> None:
    training = Training()

    def failing() -> torch.Tensor:
        training.model.eval()
        training.model.extra = 1  # type: ignore[assignment]
        training.loss(training.batches[0]).backward()
        raise error

    with watch(training) as ears:
        before = copy.deepcopy(training.model.state_dict())
        grad_enabled, draws = torch.is_grad_enabled(), torch.get_rng_state()
        try:
            assert ears.tap.probe(failing, dtype=torch.float16) is None
            assert error is GaveUpError
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
        assert not ears.edge.silent
        assert ears.edge.errors == 0
    assert alike(dict(training.model.state_dict()), dict(before))
    assert training.model.training
    assert not hasattr(training.model, "extra")
    assert training.model.calls == 0
    assert torch.is_grad_enabled() is grad_enabled
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert not torch.is_autocast_enabled("cpu")


def test_a_scaler_that_was_never_used_stays_unused() -> None:
    training = Training()
    with watch(training) as ears:
        probe(training, ears, [])(0)
        assert training.scaler._scale is None


def test_modes_and_switches_around_the_call_stay() -> None:
    training = Training()
    onednn: Any = torch.backends.mkldnn
    before = onednn.matmul.fp32_precision
    onednn.matmul.fp32_precision = "bf16"
    during: list[tuple[str, bool]] = []

    def loss() -> torch.Tensor:
        during.append((onednn.matmul.fp32_precision, torch.is_grad_enabled()))
        return training.loss(training.batches[0])

    try:
        with watch(training) as ears, torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            result = ears.tap.probe(loss)
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
            assert not torch.is_autocast_cache_enabled()
            assert not torch.is_grad_enabled()
        assert onednn.matmul.fp32_precision == "bf16"
    finally:
        onednn.matmul.fp32_precision = before
    assert result is not None
    assert result.format == "bf16"
    assert during == [("ieee", True), ("bf16", True)]


def test_a_forward_that_is_under_way_can_still_go_backward() -> None:
    """Batch norm in eval mode keeps its statistics for the backward: they must not even count as changed."""
    training = Training()
    training.model.eval()
    with watch(training) as ears:
        loss = training.loss(training.batches[0])
        training.model.train()
        probe(training, ears, [])(0)
        loss.backward()


def test_a_module_found_under_two_names_keeps_its_own_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.append(model[0])
    model[1].weight = model[0].weight
    weight = model[0].weight
    with watching(model, torch.optim.SGD(model.parameters(), lr=0.1)) as ears:
        result = ears.tap.probe(lambda: model(torch.ones(2, 4)).float().square().mean(), dtype=torch.float16)
    assert result is not None
    assert model[0].weight is model[1].weight is model[2].weight is weight
    assert list(result.parameters) == ["0.weight", "0.bias", "1.bias"]


def test_what_was_compiled_stays_compiled() -> None:
    compilations: list[int] = []
    runs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        compilations.append(1)

        def run(*inputs: torch.Tensor) -> object:
            runs.append(1)
            return graph.forward(*inputs)

        return run

    training = Training()
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    layers.compile(backend=backend)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    with watching(layers, optimizer) as ears:

        def step() -> None:
            with fp16():
                loss = layers(training.batches[0]).float().square().mean()
            loss.backward()

        step()
        # A graph that would serve the reference, if it were not to be seen in every operation.
        layers(training.batches[0])
        before = len(compilations), len(runs)
        assert ears.tap.probe(lambda: layers(training.batches[0]).float().square().mean(), dtype=torch.float16)
        assert (len(compilations), len(runs)) == (before[0], before[1] + 1)
        step()
        assert len(compilations) == before[0]
