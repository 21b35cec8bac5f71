"""Everything that a training imports, imported: its starts are forks of a process that has done so.

torch imports its compiler when the first optimizer is made, which takes longer than all the rest.
"""

from __future__ import annotations

import scalescope.watching
import torch

from tests.chaos.training import train

__all__ = ["scalescope", "train"]

torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
