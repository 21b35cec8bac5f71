"""What is told once, in the greeting: environment, optimizers, scaler and the user's configuration."""

from __future__ import annotations

import dataclasses
import json
import platform
import socket
from collections.abc import Mapping, Sequence

import torch
from torch.amp import GradScaler

from scalescope.errors import SettingError
from scalescope.version import __version__
from scalescope.wire import OptimizerSettings, ScalerSettings

# wire.Text holds 16,384 characters.
_MAX_CONFIG = 16_000
_MAX_TEXT = 1000
MAX_NAME = 512
_MAX_SETTINGS = 64


def environment() -> dict[str, str]:
    """Where this trainer runs, and the switches that decide in which format it computes."""
    facts = {
        "scalescope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "devices": _devices(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
        matmul = torch.backends.cuda.matmul
        facts["fp16_reduced_precision_reduction"] = str(matmul.allow_fp16_reduced_precision_reduction)
        facts["bf16_reduced_precision_reduction"] = str(matmul.allow_bf16_reduced_precision_reduction)
    return {name: text[:_MAX_TEXT] for name, text in facts.items()}


def optimizer_settings(optimizer: torch.optim.Optimizer) -> OptimizerSettings:
    """The numbers and flags of the optimizer's first group; betas as ``beta1``, ``beta2``."""
    values: dict[str, float] = {}
    flags: dict[str, bool] = {}
    for name, setting in optimizer.param_groups[0].items():
        if isinstance(setting, bool):
            flags[name] = setting
        elif isinstance(setting, int | float) or (isinstance(setting, torch.Tensor) and setting.numel() == 1):
            values[name] = float(setting)
        elif name == "betas":
            values |= {f"beta{place}": float(beta) for place, beta in enumerate(setting, 1)}
    return OptimizerSettings(
        name=type(optimizer).__name__,
        values=dict(list(values.items())[:_MAX_SETTINGS]),
        flags=dict(list(flags.items())[:_MAX_SETTINGS]),
    )


def scaler_settings(scaler: GradScaler) -> ScalerSettings:
    """The settings of an enabled scaler. Waits for the device if the scale is on one: once, at the start."""
    return ScalerSettings(
        name=type(scaler).__name__,
        enabled=True,
        scale=scaler.get_scale(),
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
    )


def config_text(config: object) -> str:
    """``config`` (a mapping, a dataclass or a namespace) as a JSON object; what does not fit is left out.

    Values that JSON does not know are told by their text. The object says how many entries were left out.

    Raises:
        SettingError: if it is none of these.
    """
    kept: dict[str, object] = {}
    room = _MAX_CONFIG
    items = _items(config)
    for name, setting in items.items():
        plain = _plain(setting)
        room -= len(json.dumps({name: plain}))
        if room < 0:
            kept["..."] = f"{len(items) - len(kept)} entries left out"
            break
        kept[name] = plain
    return json.dumps(kept)


def is_name(thing: object) -> bool:
    """Whether ``thing`` is a text that the wire carries as a name: 1 to 512 characters, all of them sendable."""
    if not isinstance(thing, str) or not 0 < len(thing) <= MAX_NAME:
        return False
    # A lone surrogate, as an undecodable file name has it, has no UTF-8.
    return thing.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in thing)


def world() -> tuple[int, int]:
    """The rank of this process and the number of ranks; (0, 1) outside distributed training."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _devices() -> str:
    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return f"cpu, {torch.get_num_threads()} threads"


def _items(config: object) -> dict[str, object]:
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if not isinstance(config, Mapping) and not hasattr(config, "__dict__"):
        raise SettingError("config", expected="a mapping, a dataclass or a namespace", got=config)
    found = config if isinstance(config, Mapping) else vars(config)
    return {str(name): setting for name, setting in found.items()}


def _plain(setting: object) -> object:
    """``setting`` as JSON can hold it."""
    if isinstance(setting, Mapping):
        return {str(name): _plain(inner) for name, inner in setting.items()}
    if isinstance(setting, Sequence) and not isinstance(setting, str | bytes):
        return [_plain(inner) for inner in setting]
    if isinstance(setting, bool | int | str) or setting is None:
        return setting
    if isinstance(setting, float):
        return setting if setting - setting == 0 else str(setting)
    return str(setting)
