"""Among ranks each probes its own micro-batch, and sends nothing: another rank may be doing anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scalescope.taps.probe.precision import ProbeError
from scalescope.taps.probe.ranks import refuse_sharded
from torch import nn

from tests.launching import launched
from tests.programs import Programs

WORLD = 2


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_one_rank_probes_alone_and_the_training_of_all_goes_on_to_the_same_bits(
    programs: Programs, tmp_path: Path
) -> None:
    told = launched(programs, WORLD, tmp_path, "tests.probing_ranks")
    assert [each["alike"] for each in told] == [[True, True]] * WORLD
    assert len(told[0]["errors"]) == 8
    assert all(0 < error < 0.1 for error in told[0]["errors"])
    assert "speaks to other ranks" in told[0]["reason"]


def test_parameters_spread_over_ranks_are_refused() -> None:
    class FSDPModule(nn.Linear):
        """By its name, as the one that torch makes of a module."""

    with pytest.raises(ProbeError, match="spread over ranks"):
        refuse_sharded([nn.Sequential(FSDPModule(2, 2))])
    refuse_sharded([nn.Linear(2, 2)])
