"""Live telemetry for mixed-precision training.

``scope = scalescope.watch(model, optimizer, scaler)`` is the one call; see :func:`watch`. Importing this
package does not import torch (PEP 562): the server reads the wire and the numerics without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalescope.version import __version__

if TYPE_CHECKING:
    from scalescope.scope import Scope, watch

__all__ = ["Scope", "__version__", "watch"]


def __getattr__(name: str) -> object:
    if name in {"Scope", "watch"}:
        from scalescope import scope

        return getattr(scope, name)
    raise AttributeError(f"module 'scalescope' has no attribute {name!r}")
