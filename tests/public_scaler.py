"""A scaler as a torch without the private method ``_unscale_grads_`` would have it."""

from __future__ import annotations

from types import MethodType

import torch


class PublicScaler(torch.amp.GradScaler):
    """It unscales by other means, of which nothing is heard from outside."""

    _unscale_grads_ = None  # type: ignore[assignment]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__["_unscale_grads_"] = MethodType(torch.amp.GradScaler._unscale_grads_, self)
        try:
            super().unscale_(optimizer)
        finally:
            del self.__dict__["_unscale_grads_"]
