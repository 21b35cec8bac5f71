"""One forward and backward of a probe, and the gradients that it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from scalescope.taps.parameters import Parameters
from scalescope.taps.probe.precision import ProbeError
from scalescope.taps.probe.state import StandIns, gradients_aside

# Its recomputation is a backward of its own, which autograd refuses where leaves are named.
_REENTRANT = "CheckpointFunctionBackward"
_LEAF = "AccumulateGrad"

LossFunction = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The loss, and by index of the parameter its gradient, scaled as the backward was."""

    loss: float
    gradients: dict[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Graph:
    """What a loss was made of: its leaves, and whether a part of it is recomputed in a backward of its own."""

    leaves: list[torch.Tensor]
    reentrant: bool


def run(
    loss_fn: LossFunction,
    stand_ins: StandIns,
    parameters: Parameters,
    *,
    scale: float,
    forward: Callable[[], AbstractContextManager[object]],
) -> Outcome:
    """The loss of ``loss_fn`` and its gradients, times ``scale``. ``forward`` is entered around the forward alone.

    Raises:
        ProbeError: if the loss is none, or has no gradient to a watched parameter.
    """

    def whole() -> Outcome:
        with torch.enable_grad():
            with forward():
                loss = _checked(loss_fn())
            # A tensor, as a scaler has it: a plain number would leave a loss in half where it overflows.
            scaled = loss * torch.full((), scale, device=loss.device)
            return Outcome(float(loss.detach()), _gradients(scaled, stand_ins, parameters))

    return stand_ins.call(whole)


def _checked(loss: object) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ProbeError(f"loss_fn: expected a tensor of one element, the loss before it is scaled, got {got}")
    if not loss.requires_grad:
        raise ProbeError("loss_fn: its loss has no gradient: leave detach(), item() and no_grad() out of it")
    return loss


def _graph(loss: torch.Tensor) -> Graph:
    leaves: list[torch.Tensor] = []
    reentrant = False
    seen = {loss.grad_fn}
    # What a node has beside its edges depends on its class.
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        reentrant = reentrant or type(node).__name__ == _REENTRANT
        if type(node).__name__ == _LEAF:
            leaves.append(node.variable)
        fresh = [following for following, _ in node.next_functions if following not in seen]
        seen.update(fresh)
        waiting += fresh
    return Graph(leaves, reentrant)


def _gradients(loss: torch.Tensor, stand_ins: StandIns, parameters: Parameters) -> dict[int, torch.Tensor]:
    """By index, of the stand-ins and of parameters that the loss reaches past their module."""
    graph = _graph(loss)
    past = [tensor for tensor in graph.leaves if parameters.index(tensor) is not None]
    inputs = [*(leaf for leaf in stand_ins.leaves.values() if leaf.requires_grad), *past]
    given = _reentrant(loss, graph, inputs, past) if graph.reentrant else _named(loss, inputs)
    found: dict[int, torch.Tensor] = {}
    for index, parameter in enumerate(parameters.tensors):
        leaf = stand_ins.leaves.get(id(parameter))
        parts = [given[id(tensor)] for tensor in (leaf, parameter) if id(tensor) in given]
        if parts:
            found[index] = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    if not found:
        raise ProbeError("loss_fn: its loss reaches no watched parameter: call the watched model in it")
    return found


def _named(loss: torch.Tensor, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """By identity, what autograd hands over without adding it to anything: nothing that hangs on a leaf runs."""
    given = torch.autograd.grad(loss, list(inputs), allow_unused=True)
    return {id(leaf): gradient for leaf, gradient in zip(inputs, given, strict=True) if gradient is not None}


def _reentrant(
    loss: torch.Tensor, graph: Graph, inputs: Sequence[torch.Tensor], past: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """The same where autograd must not be told the leaves, and adds to all of them."""
    if past:
        raise ProbeError("loss_fn: it reaches weights past their modules beside use_reentrant=True: turn that off")
    with gradients_aside(graph.leaves):
        loss.backward()
        return {id(leaf): leaf.grad for leaf in inputs if leaf.grad is not None}
