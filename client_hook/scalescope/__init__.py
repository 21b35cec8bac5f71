"""Live telemetry for mixed-precision training.

``scope = scalescope.watch(model, optimizer, scaler)`` is the one call; see :func:`watch`. What was recorded is read
back by ``scalescope.open_run(run)``; see :func:`open_run`. Importing this
package does not import torch (PEP 562): the server reads the wire and the numerics without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from scalescope.version import __version__

if TYPE_CHECKING:
    from scalescope.errors import ScalescopeError, SettingError
    from scalescope.recorded.opening import open_run
    from scalescope.recorded.run import RecordedRun
    from scalescope.recorded.sources import ReadError
    from scalescope.scope import Scope
    from scalescope.taps.probe.result import ProbeResult
    from scalescope.watching import watch

__all__ = [
    "ProbeResult",
    "ReadError",
    "RecordedRun",
    "ScalescopeError",
    "Scope",
    "SettingError",
    "__version__",
    "open_run",
    "watch",
]

_ROOMS = {
    "ProbeResult": "scalescope.taps.probe.result",
    "ReadError": "scalescope.recorded.sources",
    "RecordedRun": "scalescope.recorded.run",
    "ScalescopeError": "scalescope.errors",
    "Scope": "scalescope.scope",
    "SettingError": "scalescope.errors",
    "open_run": "scalescope.recorded.opening",
    "watch": "scalescope.watching",
}


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'scalescope' has no attribute {name!r}")
