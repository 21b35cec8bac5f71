"""What is told once, in the greeting: environment, optimizers, scaler and the user's configuration."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

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
_MAX_COUNT = 2**53 - 1
# Deeper than any configuration that a person wrote; one that contains itself has no end.
_MAX_DEPTH = 8


def environment(devices: Collection[torch.device] = ()) -> dict[str, str]:
    """Where this trainer runs, and on which ``devices``."""
    facts = {
        "scalescope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "devices": _devices(devices),
    }
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
    return {name: sendable(text)[:_MAX_TEXT] for name, text in facts.items()}


def devices_of(optimizers: Iterable[torch.optim.Optimizer]) -> set[torch.device]:
    """Where the parameters are that they step."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {tensor.device for group in groups for tensor in group["params"]}


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
        # One of sys.maxsize is how growth is turned off; the wire, as JavaScript, counts to 2**53.
        growth_interval=min(scaler.get_growth_interval(), _MAX_COUNT),
    )


def config_text(config: object) -> str:
    """``config`` (a mapping, a dataclass or a namespace) as a JSON object; what does not fit is left out.

    Values that JSON does not know are told by their text, those that cannot be read by the error's name. The
    object says how many entries were left out.

    Raises:
        SettingError: if it is none of these.
    """
    kept: dict[str, object] = {}
    room = _MAX_CONFIG
    items = _plain_items(config)
    for name, plain in items.items():
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


def is_among_ranks() -> bool:
    """Whether this process takes part in distributed training."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def world(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank of this process and the number of ranks; (0, 1) outside distributed training.

    Before the process group is initialized it is what a launcher, such as torchrun, has put into ``environ`` for it.
    """
    if is_among_ranks():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    told = [environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    # With an address the two are meant for torch; without one they may be any scheduler's.
    if environ.get("MASTER_ADDR") and all(number.isdecimal() for number in told):
        rank, size = map(int, told)
        return (rank, size) if rank < size else (0, 1)
    return 0, 1


def sendable(text: str) -> str:
    """``text`` as UTF-8 can carry it: a lone surrogate, as an undecodable file name has it, is told by its number."""
    return text.encode("utf-8", "backslashreplace").decode()


def _devices(devices: Collection[torch.device]) -> str:
    # Only a training on CUDA may ask it: asking takes memory on the device, and no process can fork from then on.
    if any(device.type == "cuda" for device in devices):
        return ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    others = sorted({device.type for device in devices} - {"cpu"})
    return ", ".join(others) or f"cpu, {torch.get_num_threads()} threads"


def _plain_items(config: object) -> dict[str, object]:
    plain = _read({"config": _mapping(config)}, "config", _MAX_DEPTH)
    return plain if isinstance(plain, dict) else {"...": plain}


def _mapping(config: object) -> Mapping[Any, Any]:
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name, None) for field in dataclasses.fields(config)}
    if not isinstance(config, Mapping) and not hasattr(config, "__dict__"):
        raise SettingError("config", expected="a mapping, a dataclass or a namespace", got=config)
    return config if isinstance(config, Mapping) else vars(config)


def _read(found: Mapping[Any, object] | Sequence[object], key: Any, depth: int) -> object:  # noqa: ANN401 - its own key
    try:
        return _plain(found[key], depth)
    except Exception as error:  # noqa: BLE001 - the user's own objects: what they raise when read stays out of training
        return f"<{type(error).__name__}>"


def _plain(setting: object, depth: int) -> object:
    """``setting`` as JSON can hold it, to ``depth`` levels."""
    if setting is None or isinstance(setting, bool | int):
        return setting
    if isinstance(setting, float):
        return setting if setting - setting == 0 else str(setting)
    if isinstance(setting, str | bytes) or not isinstance(setting, Mapping | Sequence):
        return sendable(str(setting))
    if not depth:
        return "<nested too deeply>"
    if isinstance(setting, Mapping):
        return {sendable(str(name)): _read(setting, name, depth - 1) for name in setting}
    return [_read(setting, place, depth - 1) for place in range(len(setting))]
