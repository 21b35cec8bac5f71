"""A rule's sentence as a tree of typed, frozen values: what the parser makes and the evaluator compiles.

A condition is true, false or not known at an update; a value is a number or not known. Each has a shape: one for
the run, or one for each layer, module or rank, of which ``Across`` and ``Matching`` make one for the run again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from scalescope_server.rules.ticks import RunState

Shape = Literal["run", "layer", "module", "rank"]
Each = Literal["layer", "module", "rank"]
# "" a plain number, "%" a share of 1 (20% is 0.2), "ms" a time in milliseconds.
Unit = Literal["", "%", "ms"]
ArithmeticSign = Literal["+", "-", "*", "/"]
ComparisonSign = Literal["<", "<=", ">", ">=", "==", "!="]
PointwiseName = Literal["abs", "log2"]
OverName = Literal[
    "last", "min", "max", "mean", "sum", "median", "quantile", "change", "changes", "reversals", "rate", "zscore"
]
CountName = Literal["count", "rate"]
AcrossName = Literal["max", "min", "mean", "sum", "median"]

# A window is kept in memory for each run it is evaluated on; what goes further back is a trend, not an alarm. One of
# time ends where either does.
MOST_UPDATES = 100_000
MOST_SECONDS = 7 * 86_400.0


class Updates(Struct, frozen=True, tag="updates"):
    """So many attempted updates, whatever became of them; at least 1."""

    count: int


class Seconds(Struct, frozen=True, tag="seconds"):
    """So long by the clock of ticks and pulses; more than 0."""

    seconds: float


Duration: TypeAlias = Updates | Seconds


class Number(Struct, frozen=True, tag="number"):
    """A finite number in the sentence; ``unit`` is how it is written, ``value`` already in base units."""

    value: float
    unit: Unit = ""


class Series(Struct, frozen=True, tag="series"):
    """The latest value told of a series of the run (rank 0): of the contract's names or the user's own."""

    name: str


class Measured(Struct, frozen=True, tag="measured"):
    """The latest sampled value of a measure for each layer or module whose name matches.

    ``names``: a glob; ``without``: a glob of those left out, "" for none.
    """

    measure: str
    names: str = "*"
    without: str = ""


class OfRanks(Struct, frozen=True, tag="of_ranks"):
    """The latest value of a series for each rank."""

    series: str


class Negative(Struct, frozen=True, tag="negative"):
    of: Value


class Pointwise(Struct, frozen=True, tag="pointwise"):
    """``log2`` of 0 is -inf, of a negative number not known."""

    function: PointwiseName
    of: Value


class Arithmetic(Struct, frozen=True, tag="arithmetic"):
    """Of floats: a division by zero is inf, -inf or NaN, never an error."""

    sign: ArithmeticSign
    left: Value
    right: Value


class Over(Struct, frozen=True, tag="over"):
    """A function of the values told in a window that ends with this update; of each layer, module or rank apart.

    ``share``: which quantile, 0 to 1; None for the other functions. ``rate`` is the sum by second of time.
    """

    function: OverName
    of: Value
    window: Duration
    share: float | None = None


class Counted(Struct, frozen=True, tag="counted"):
    """At how many updates of the window the condition held (``count``), or at which share of those known (``rate``)."""

    function: CountName
    of: Condition
    window: Duration


class Across(Struct, frozen=True, tag="across"):
    """One value for the run out of those of all layers, modules or ranks that have one."""

    function: AcrossName
    by: Each
    of: Value


class Matching(Struct, frozen=True, tag="matching"):
    """For how many layers, modules or ranks the condition holds: ``count by layer(...)``."""

    by: Each
    of: Condition


class Comparison(Struct, frozen=True, tag="comparison"):
    """As floats compare: NaN is unequal to everything, itself included, and neither less nor more."""

    sign: ComparisonSign
    left: Value
    right: Value


class Nonfinite(Struct, frozen=True, tag="nonfinite"):
    """The value is infinite or NaN: ``loss is not finite``."""

    of: Value


class Flag(Struct, frozen=True, tag="flag"):
    """A series that is told as 0 or 1 is not 0: ``skipped``, ``applied``."""

    of: Series | OfRanks


class Often(Struct, frozen=True, tag="often"):
    """The condition held at ``times`` or more of the last ``updates``: ``skipped in 8 of 10 updates``."""

    of: Condition
    times: int
    updates: int


class Finding(Struct, frozen=True, tag="finding"):
    """A finding with this code is open."""

    code: str


class NoUpdate(Struct, frozen=True, tag="no_update"):
    """The run is not finished and its last update is so long ago. Only time tells, so pulses do."""

    within: Seconds


class RunIs(Struct, frozen=True, tag="run_is"):
    """The run is in this state, by the last pulse or tick."""

    state: RunState


class RankDisagreement(Struct, frozen=True, tag="rank_disagreement"):
    """Ranks that told the series of this update told different values."""

    series: str


class Not(Struct, frozen=True, tag="not"):
    of: Condition


class And(Struct, frozen=True, tag="and"):
    """Two or more."""

    of: tuple[Condition, ...]


class Or(Struct, frozen=True, tag="or"):
    """Two or more."""

    of: tuple[Condition, ...]


Value: TypeAlias = (
    Number | Series | Measured | OfRanks | Negative | Pointwise | Arithmetic | Over | Counted | Across | Matching
)
Condition: TypeAlias = (
    Comparison | Nonfinite | Flag | Often | Finding | NoUpdate | RunIs | RankDisagreement | Not | And | Or
)


class Expression(Struct, frozen=True):
    """All that a sentence says. ``hold``: how long the condition holds before it fires; ``keep_firing``: how long
    it may fail before the alert is over. None: at once.
    """

    condition: Condition
    hold: Duration | None = None
    keep_firing: Duration | None = None
