"""What DeepSpeed's loss scalers hold, by the names that its classes have for it; what is not there is left out."""

from __future__ import annotations

from typing import Any

from scalescope.integrations.deepspeed_gradients import Theirs
from scalescope.taps.library.tap import Scaling
from scalescope.taps.logged import as_value
from scalescope.wire import ScalerSettings

# What its scalers multiply by where they do not say.
_GROWTH = 2.0


def scaler_settings(optimizer: Theirs) -> ScalerSettings | None:
    """Those of its scaler; None where nothing is scaled."""
    scaler, scale = _scaler(optimizer), as_value(scaling(optimizer).scale)
    if scaler is None or not isinstance(scale, float):
        return None
    growth = float(getattr(scaler, "scale_factor", None) or _GROWTH) if _is_dynamic(scaler) else 1.0
    return ScalerSettings(
        name=type(scaler).__name__,
        enabled=True,
        scale=scale,
        growth_factor=growth,
        backoff_factor=1 / growth,
        growth_interval=int(getattr(scaler, "scale_window", None) or 0),
    )


def scaling(optimizer: Theirs) -> Scaling:
    """What the scaler of ``optimizer`` holds just now; nothing where it does not scale.

    The tracker is what torch's scaler has: clean updates since the last overflow, doubling or start. DeepSpeed counts
    from the overflow alone, and doubles at the update after each ``scale_window`` of them.
    """
    scaler = _scaler(optimizer)
    if scaler is None:
        return Scaling()
    scale = optimizer.external_loss_scale if getattr(optimizer, "custom_loss_scaler", False) else scaler.cur_scale
    return Scaling(scale, _tracker(scaler), getattr(scaler, "cur_hysteresis", None))


def global_norm(optimizer: Theirs, before: object, after: object) -> object:
    """The norm over all ranks that DeepSpeed clips by, divided by the scale of its update; None where it has none.

    It divides by the scale before the update (ZeRO 1 and 2), by the one after it, which differs where that doubles
    (ZeRO 3, FP16_Optimizer), or not at all (FP16_UnfusedOptimizer).
    """
    norm = getattr(optimizer, "_global_grad_norm", None)
    if norm is None or not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return norm
    if hasattr(optimizer, "fp32_partitioned_groups_flat") or hasattr(optimizer, "fp32_groups_flat"):
        return norm if before == after else norm * (after / before)
    return norm / before if hasattr(optimizer, "fp32_groups") else norm


def _scaler(optimizer: Theirs) -> Any:
    """What holds the loss scale; None where nothing is scaled, as in bf16, where a scaler of 1 stands."""
    found: Any = getattr(optimizer, "loss_scale_config", None) or getattr(optimizer, "loss_scaler", None)
    if not hasattr(found, "cur_scale") or getattr(found, "use_grad_scaling", True) is False:
        return None
    still = not _is_dynamic(found) and found.cur_scale == 1 and not getattr(optimizer, "custom_loss_scaler", False)
    return None if still else found


def _is_dynamic(scaler: Any) -> bool:
    return bool(getattr(scaler, "dynamic", getattr(scaler, "dynamic_loss_scale", False)))


def _tracker(scaler: Any) -> int | None:
    iteration, last, window = (
        getattr(scaler, name, None) for name in ("cur_iter", "last_overflow_iter", "scale_window")
    )
    if iteration is None or last is None or not window:
        return None
    clean = int(iteration) - int(last) - 1
    return int(window) if clean > 0 and clean % window == 0 else clean % int(window)


def decides_later(optimizer: Theirs) -> bool:
    """Whether ``_update_scale`` is called in every step: not where nothing is ever scaled."""
    config = getattr(optimizer, "loss_scale_config", None)
    return (
        callable(getattr(optimizer, "_update_scale", None)) and getattr(config, "use_grad_scaling", True) is not False
    )


def lacking(optimizer: Theirs) -> list[str]:
    """What is not recorded, with the attribute that is missed."""
    missed = [] if callable(getattr(optimizer, "step", None)) else ["any update (it has no step)"]
    missed += _lacking_of_scale(optimizer)
    # The one of bf16 makes it in its first step.
    if not hasattr(optimizer, "_global_grad_norm") and not hasattr(optimizer, "fp32_groups_gradients"):
        missed.append("the norm of all gradients (no _global_grad_norm)")
    if getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False):
        missed.append("gradients, as they are offloaded")
    elif not any(hasattr(optimizer, name) for name in ("averaged_gradients", "fp32_groups_gradients", "fp16_groups")):
        missed.append("gradients (no averaged_gradients, fp32_groups_gradients or fp16_groups)")
    return missed


def _lacking_of_scale(optimizer: Theirs) -> list[str]:
    if hasattr(optimizer, "fp32_groups_gradients"):
        # bf16's own, which scales nothing and skips nothing.
        return []
    if getattr(optimizer, "torch_autocast_gradscaler", None) is not None:
        return ["the scale and the skips of torch's scaler inside of it"]
    if not hasattr(optimizer, "loss_scale_config") and not hasattr(optimizer, "loss_scaler"):
        return ["the loss scale (no loss_scale_config, no loss_scaler)"]
    return [] if hasattr(optimizer, "overflow") else ["skips (no overflow)"]
