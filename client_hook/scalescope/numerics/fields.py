"""The exponent field of each value, as fp32 has it: what a histogram counts."""

from __future__ import annotations

import torch

# Field 0: zeros and subnormals. Fields 1 to 254: exponents -126 to 127. Field 255: infinities and NaNs.
FIELDS = 256


def fields_into(values: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """uint8 [n]: the field of each of ``values`` (fp32, bf16 or float64, flat), written into ``narrow``.

    ``wide`` (int32) and ``narrow`` (uint8) are scratch of at least n elements on the same device.
    """
    size = values.numel()
    fields = narrow[:size]
    if values.dtype == torch.float32:
        # The arithmetic shift leaves the sign above bit 7, which the narrowing drops.
        torch.bitwise_right_shift(values.view(torch.int32), 23, out=wide[:size])
        return fields.copy_(wide[:size])
    if values.dtype == torch.bfloat16:
        return fields.copy_(values.view(torch.int16) >> 7)
    exponent = (values.view(torch.int64) >> 52) & 0x7FF
    return fields.copy_((exponent - (1023 - 127)).clamp_(0, 255))
