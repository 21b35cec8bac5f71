"""The switches of torch that decide in which precision it computes."""

from __future__ import annotations

from operator import attrgetter

import torch

from scalescope.taps.facts import sendable

# Name -> where torch has it, as a value or a function.
_SWITCHES = {
    "float32_matmul_precision": "get_float32_matmul_precision",
    "deterministic": "are_deterministic_algorithms_enabled",
    "cudnn_deterministic": "backends.cudnn.deterministic",
    "tf32_matmul": "backends.cuda.matmul.allow_tf32",
    "tf32_cudnn": "backends.cudnn.allow_tf32",
    "fp32_matmul_precision_cuda": "backends.cuda.matmul.fp32_precision",
    "fp32_conv_precision_cudnn": "backends.cudnn.conv.fp32_precision",
    "fp32_matmul_precision_cpu": "backends.mkldnn.matmul.fp32_precision",
    "fp16_reduced_precision_reduction": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "fp16_accumulation": "backends.cuda.matmul.allow_fp16_accumulation",
}


def flags() -> dict[str, bool | str]:
    """Name -> its value; without those that this torch does not have, or cannot tell.

    Newer torch refuses to read a switch by its old name once it was set by the new one.
    """
    found = {name: _read(path) for name, path in _SWITCHES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _read(path: str) -> bool | str | None:
    try:
        held = attrgetter(path)(torch)
        value = held() if callable(held) else held
    except (AttributeError, RuntimeError):
        return None
    return value if isinstance(value, bool) else sendable(str(value))
