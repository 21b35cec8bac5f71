"""Whatever a module answers: what counts of it, and exactly how much."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.small_modules import Account, tallies, trained

WIDTH = 4


def test_a_recurrent_module_answers_several_tensors() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(WIDTH, 3, num_layers=2)
    account = Account(model, lambda answer: [answer[0], *answer[1]])  # type: ignore[index]

    def loss() -> torch.Tensor:
        output, (hidden, cell) = model(torch.randn(5, 2, WIDTH))
        total: torch.Tensor = output.sum() + hidden.square().sum() + cell.sum()
        return total

    assert tallies(trained(model, loss))[0] == account.numbers()


@dataclass
class Packed:
    scores: torch.Tensor
    note: str
    cache: dict[str, list[torch.Tensor]]


class Packing(nn.Module):
    """Answers a dataclass of tensors of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, batch: torch.Tensor) -> Packed:
        scores = self.inner(batch)
        others = [scores * 3, scores.long(), torch.complex(scores, scores), scores[:0]]
        return Packed(scores, "text", {"cache": others})


def test_only_real_floating_tensors_count_however_they_are_packed() -> None:
    model = Packing()
    batch = torch.ones(2, WIDTH, dtype=torch.float64) * 1e300

    def loss() -> torch.Tensor:
        answer = model(batch)
        total: torch.Tensor = answer.scores.sum() * 1e-300 + answer.cache["cache"][0].sum() * 1e-300
        return total

    told = tallies(trained(model, loss))[0]
    assert told[""]["forward_numel"] == 2 * 2 * WIDTH
    assert told[""]["forward_amax"] == 3 * told["inner"]["forward_amax"] > 1e299
    assert told[""]["forward_nonfinite"] == 0
    assert told["inner"]["grad_output_amax"] == 4e-300


class Answers(nn.Module):
    """Answers whatever it is told to, beside a loss that trains."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.answer = answer

    def forward(self) -> object:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [None, 3.0, "text", [], torch.arange(3), torch.zeros(2, dtype=torch.complex64), object(), {"a": None}],
    ids=["none", "number", "text", "nothing", "integers", "complex", "object", "mapping"],
)
def test_an_answer_without_floating_tensors_has_no_row(answer: object) -> None:
    model = Answers(answer)

    def loss() -> torch.Tensor:
        model()
        return model.weight.sum()

    assert tallies(trained(model, loss)) == {}


@pytest.mark.parametrize(
    ("answer", "amax", "nonfinite", "numel"),
    [
        (torch.zeros(0, 3), 0.0, 0, 0),
        (torch.tensor(-2.5), 2.5, 0, 1),
        (torch.tensor([torch.nan, -7.0, torch.inf, 3.0]), 7.0, 2, 4),
        (torch.tensor([torch.nan, -torch.inf]), 0.0, 2, 2),
        (torch.tensor([65504.0, torch.inf], dtype=torch.float16), 65504.0, 1, 2),
        (torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn), 448.0, 0, 2),
        (
            torch.sparse_coo_tensor(
                torch.tensor([[0, 0, 5]]), torch.tensor([2.0, 2.0, torch.inf]), (9,), check_invariants=True
            ),
            4.0,
            1,
            2,
        ),
        (torch.ones(2, 1).expand(2, 7), 1.0, 0, 14),
        (torch.empty(3, device="meta"), None, None, None),
    ],
    ids=["empty", "scalar", "both", "none finite", "half", "fp8", "sparse", "expanded", "meta"],
)
def test_the_largest_finite_magnitude_and_the_rest_are_exact(
    answer: torch.Tensor, amax: float | None, nonfinite: int, numel: int
) -> None:
    model = Answers(answer)

    def loss() -> torch.Tensor:
        model()
        return model.weight.sum()

    expected = {"forward_amax": amax, "forward_nonfinite": nonfinite, "forward_numel": numel}
    assert tallies(trained(model, loss)) == ({} if amax is None else {0: {"": expected}})
