"""A watched scaler stays what it was: its class, its copies, its pickles, whatever its author made of it."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scalescope.recorder import Recorder
from scalescope.taps.edge import Edge
from scalescope.taps.scaler.swapped import own_class
from scalescope.taps.training import Training, TrainingTap
from torch import nn

from tests.small_training import Course, steps, watching


class Timid(torch.amp.GradScaler):
    """A user's own scaler."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        self.updates = getattr(self, "updates", 0) + 1


@pytest.mark.parametrize("make", [lambda: Timid("cpu"), lambda: torch.amp.GradScaler("cpu")], ids=["own", "torch"])
def test_a_watched_scaler_is_still_the_users(make: Callable[[], torch.amp.GradScaler]) -> None:
    course = Course(scaler=make())
    own = type(course.scaler)
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler):
        course.run(3)
        assert isinstance(course.scaler, own)
        assert own_class(course.scaler) is own
        state = course.scaler.state_dict()
    assert type(course.scaler) is own
    assert course.scaler.state_dict() == state
    if own is Timid:
        assert course.scaler.__dict__["updates"] == 3


@pytest.mark.parametrize(
    "copied",
    [lambda scaler: pickle.loads(pickle.dumps(scaler)), copy.deepcopy],
    ids=["pickle", "deepcopy"],
)
def test_a_copy_of_a_watched_scaler_is_not_watched(
    copied: Callable[[torch.amp.GradScaler], torch.amp.GradScaler],
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    course = Course(scaler=scaler)
    with watching(course.model, course.optimizer, scaler) as watched:
        course.run(2)
        double = copied(scaler)
        assert type(double) is torch.amp.GradScaler
        assert double.state_dict() == scaler.state_dict()
        course.scaler = double
        course.run(2)
        course.scaler = scaler
        course.run(1)
        records = watched.end()
    # Those that the copy took are updates as well, of which the watched one knows nothing.
    assert steps(records) == [0, 1, 2, 3, 4]


def test_model_optimizer_and_scaler_pickle_while_watched_and_load_without_this_package() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with watching(model, optimizer, scaler):
        # Before any backward every parameter still has its hook.
        buffer = io.BytesIO()
        torch.save((model, optimizer, scaler), buffer)
        copy.deepcopy((model, optimizer))
        with pytest.warns(DeprecationWarning, match="jit"):
            torch.jit.script(model)
    program = (
        "import sys, io, torch\n"
        "sys.modules['scalescope'] = None\n"
        "model, optimizer, scaler = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False)\n"
        "scaler.scale(model(torch.ones(1, 4)).sum()).backward(); scaler.step(optimizer); scaler.update()\n"
        "print(type(scaler).__module__, scaler.get_scale())"
    )
    done = subprocess.run([sys.executable, "-c", program], input=buffer.getvalue(), capture_output=True, check=True)
    assert done.stdout.decode().split() == ["torch.amp.grad_scaler", "65536.0"]


def test_two_scopes_may_listen_to_one_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu")
    course = Course(scaler=scaler)
    with watching(course.model, course.optimizer, scaler) as one:
        with watching(course.model, course.optimizer, scaler) as other:
            course.run(2)
            assert steps(other.end()) == [0, 1]
        course.run(1)
        assert steps(one.end()) == [0, 1, 2]
    assert type(scaler) is torch.amp.GradScaler


@dataclass
class Own(torch.amp.GradScaler):
    """A user's own scaler: without a hash, with a signature and an answer of its own."""

    floor: float = 1.0

    def __post_init__(self) -> None:
        super().__init__("cpu", init_scale=8.0)

    def update(self, new_scale: float | torch.Tensor | None = None, *, floor: float = 1.0) -> float:  # type: ignore[override]
        super().update(new_scale)
        return max(self.get_scale(), floor)


def test_a_scaler_of_any_signature_and_without_a_hash_is_heard() -> None:
    scaler = Own()
    course = Course(scaler=scaler)
    with watching(course.model, course.optimizer, scaler) as watched:
        course.run(1)
        course.backward()
        scaler.step(course.optimizer)
        assert scaler.update(floor=16.0) == 16.0
        assert steps(watched.end()) == [0, 1]
    assert type(scaler) is Own


def test_what_listens_to_a_scaler_does_not_keep_it() -> None:
    course, recorder, edge = Course(), Recorder(), Edge()
    scaler = torch.amp.GradScaler("cpu")
    training = Training([course.model], [course.optimizer], scaler)
    tap = TrainingTap(training, recorder, edge, every=10, clock=time.time)
    gone = weakref.ref(scaler)
    del scaler, training
    gc.collect()
    assert gone() is None
    tap.remove()
    assert edge.errors == 0
