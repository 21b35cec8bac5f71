"""The settings of a loss scaler: what they explain of its moves, and how their user writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from scalescope_server.findings.words import scale_code, scale_text, times

# torch's own growth interval: for a trainer that did not tell its scaler's, and proposed instead of a shorter one.
DEFAULT_INTERVAL = 2000
# The window of DeepSpeed and of Megatron, proposed to their users.
LIBRARY_WINDOW = 1000
# The window over which a skip rate is judged, in growth intervals, and at least so many updates: a probing
# scaler skips about once an interval, and a rate needs a few of them.
WINDOW_INTERVALS = 4
WINDOW_UPDATES = 1000

_DEEPSPEED = ("DynamicLossScaler", "LossScaler", "LossScaleConfig")
_MEGATRON = ("DynamicGradScaler", "ConstantGradScaler")
_TORCH = ("GradScaler", "ShardedGradScaler")


class ScalerRules(Struct, frozen=True):
    """The settings that explain a scaler's moves. ``growth_interval``: clean updates before a doubling.

    ``name`` is its class; ``growth`` and ``backoff`` are what the scale is multiplied by. ``moves``: whether it ever
    is; ``told``: whether the trainer told of a scaler at all.
    """

    growth_interval: int
    name: str = "GradScaler"
    growth: float = 2.0
    backoff: float = 0.5
    told: bool = True

    @classmethod
    def of(cls, settings: Mapping[str, object] | None) -> ScalerRules:
        """Those of a trainer's greeting, torch's where it tells none."""
        if settings is None:
            return cls(DEFAULT_INTERVAL, told=False)
        interval, name = settings.get("growth_interval"), settings.get("name")
        return cls(
            interval if isinstance(interval, int) and interval > 0 else DEFAULT_INTERVAL,
            name if isinstance(name, str) else "GradScaler",
            _factor(settings.get("growth_factor"), 2.0),
            _factor(settings.get("backoff_factor"), 0.5),
        )

    @property
    def floor(self) -> float:
        """The scale below which it does not go, as far as its library says; 0 where there is none."""
        return 1.0 if self.name in _DEEPSPEED + _MEGATRON else 0.0

    @property
    def moves(self) -> bool:
        return self.growth != 1.0 or self.backoff != 1.0

    @property
    def is_torch(self) -> bool:
        return self.name in _TORCH

    @property
    def probe_share(self) -> float:
        """The share of updates that probing alone costs: one skip for each interval of clean ones."""
        return 1 / (self.growth_interval + 1)

    @property
    def window(self) -> int:
        return max(WINDOW_UPDATES, WINDOW_INTERVALS * self.growth_interval)

    @property
    def usual_interval(self) -> int:
        """What its library proposes."""
        return LIBRARY_WINDOW if self.name in _DEEPSPEED + _MEGATRON else DEFAULT_INTERVAL

    def written(self, start: float, interval: int | None = None) -> str:
        """How its user sets that it begins at ``start`` and is doubled after ``interval`` clean updates."""
        if self.name in _DEEPSPEED:
            return _deepspeed(start, interval)
        if self.name in _MEGATRON:
            window = "" if interval is None else f" --loss-scale-window {interval}"
            return f"--initial-loss-scale {start:.0f}{window}"
        if self.is_torch:
            window = "" if interval is None else f", growth_interval={interval}"
            return f"GradScaler(init_scale={scale_code(start)}{window})"
        window = "" if interval is None else f" and a growth interval of {times(interval, 'update')}"
        return f"an initial scale of {scale_text(start)}{window}"


def _deepspeed(start: float, interval: int | None) -> str:
    power = f'"initial_scale_power": {max(round(_octaves(start)), 0)}'
    window = "" if interval is None else f', "loss_scale_window": {interval}'
    return f'{power}{window} in the "fp16" section of DeepSpeed\'s configuration'


def _octaves(scale: float) -> float:
    return math.log2(scale) if scale > 0 else 0.0


def _factor(told: object, otherwise: float) -> float:
    return float(told) if isinstance(told, int | float) and 0 < told < math.inf else otherwise
