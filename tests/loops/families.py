"""The whole catalogue, in the order of the table."""

from __future__ import annotations

from tests.loops.accumulation import ACCUMULATION
from tests.loops.compiled import COMPILED
from tests.loops.copying import COPYING
from tests.loops.optimizers import OPTIMIZERS
from tests.loops.passes import PASSES
from tests.loops.precision import PRECISION
from tests.loops.scaling import SCALING
from tests.loops.structure import STRUCTURE

FAMILIES = (OPTIMIZERS, SCALING, ACCUMULATION, PRECISION, PASSES, STRUCTURE, COMPILED, COPYING)
