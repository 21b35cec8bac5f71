"""The parts of a set-up that are read at sampled updates."""

from __future__ import annotations

from functools import partial

from scalescope.taps.library.optimizer import LibraryOptimizer
from scalescope.taps.loop import Loop
from scalescope.taps.parameters import Parameters
from scalescope.taps.setup.bytes import Memory
from scalescope.taps.setup.flags import flags
from scalescope.taps.setup.parameters import WithoutGradient, requires_no_grad, tied
from scalescope.taps.setup.setups import Setups
from scalescope.taps.setup.state import OptimizerStates


def read_parts(setups: Setups, loop: Loop, parameters: Parameters) -> None:
    """Have ``setups`` read what holds of the training of ``loop``; seldom what takes a look at every tensor."""
    setups.read("flags", flags)
    setups.read("requires_no_grad", partial(requires_no_grad, parameters), now_and_then=True)
    setups.read("tied", partial(tied, parameters), now_and_then=True)
    # A library keeps state and gradients where they are not looked for.
    if not any(isinstance(optimizer, LibraryOptimizer) for optimizer in loop.optimizers):
        setups.read("optimizer_state", OptimizerStates(loop))
        setups.read("without_gradient", WithoutGradient(parameters, loop))
        setups.read("bytes", Memory(loop, parameters), now_and_then=True)
