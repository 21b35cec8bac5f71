"""The statistics of TransformerEngine's debug features, and of all others that log through nvdlfw-inspect.

``nvdlfw_inspect.api.initialize(..., statistics_logger=StatisticsLogger(scope))``, or for one more logger beside others
``nvdlfw_inspect.logging.MetricLogger.add_logger(StatisticsLogger(scope))``. Their scalars become series of the run.
"""

from __future__ import annotations

import logging
from typing import Any

from scalescope.integrations.attendant import missing
from scalescope.scope import Scope

try:
    from nvdlfw_inspect.logging import BaseLogger
except ImportError as error:
    raise missing("transformer_engine", "nvdlfw-inspect") from error

# A statistic for each tensor of each layer: of a large model more than a run has series for.
MOST_NAMES = 500

logger = logging.getLogger("scalescope")


class StatisticsLogger(BaseLogger):  # type: ignore[misc]  # it has no types
    """Hands scalars on to ``scope``, under the names that they come with: of the first ``most`` names.

    They belong to the update whose backward ran last, which is the one that a feature speaks of when the training
    calls ``nvdlfw_inspect.api.step()`` after the optimizer's step. Tensors are read later, without a wait.
    """

    def __init__(self, scope: Scope, *, most: int = MOST_NAMES) -> None:
        super().__init__()
        self.left_out = 0
        self._scope = scope
        self._most = most
        self._names: set[str] = set()

    def log_scalar(self, name: str, value: Any, iteration: int, **kwargs: Any) -> None:
        """Take one. ``iteration`` is the library's count of steps, which a run counts by itself."""
        if name not in self._names:
            if len(self._names) >= self._most:
                self._leave_out(name)
                return
            self._names.add(name)
        self._scope.log(**{name: value})

    def _leave_out(self, name: str) -> None:
        self.left_out += 1
        if self.left_out == 1:
            logger.warning(
                "scalescope: %.64r and what else is logged beyond %d names is left out; select fewer layers, tensors "
                "or statistics in the config of nvdlfw-inspect, or pass StatisticsLogger a higher most",
                name,
                self._most,
            )
