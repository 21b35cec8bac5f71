"""The messages between a trainer and the server: msgpack, one message a WebSocket frame.

A connection begins with :class:`Hello`, answered by :class:`Welcome` or :class:`Refused`. After that the
trainer sends *records*, each with a sequence number of its own within (run, segment, rank), in order, and a
:class:`Heartbeat` now and then; the server answers :class:`Ack` once the records are durable.

Everything decoded here comes from outside and is bounded: sizes, lengths and ranges are part of the types,
so a message that breaks them is a :class:`WireError` before any room sees it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from scalescope.packing import PackedHistograms

PROTOCOL = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024

Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Text = Annotated[str, Meta(max_length=16_384)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Index = Annotated[int, Meta(ge=0, lt=2**31)]
Order = Literal["observed", "forward", "unknown"]
SampleKind = Literal["grad", "weight", "forward", "grad_output"]
SampleReason = Literal["periodic", "skip", "request"]
EventKind = Literal["skip", "growth", "backoff", "scale_set", "dropped"]
ByeReason = Literal["finished", "crashed"]
RefusalCode = Literal["protocol", "token", "malformed", "too_large", "unavailable", "superseded"]


class WireError(ValueError):
    """A frame that is not a message of this protocol; the message says what was expected and what came."""


class ScalerSettings(Struct, frozen=True, kw_only=True):
    """A loss scaler as it was when the run began. ``scale`` is the initial one."""

    name: Name
    enabled: bool
    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: Count


class OptimizerSettings(Struct, frozen=True, kw_only=True):
    """One optimizer: its class, its first group's numbers ("lr", "eps", ...) and its flags ("fused", ...)."""

    name: Name
    values: Annotated[dict[Name, float], Meta(max_length=64)] = {}
    flags: Annotated[dict[Name, bool], Meta(max_length=64)] = {}


class Hello(Struct, tag="hello", frozen=True, kw_only=True):
    """Who is calling. ``started_at`` is in seconds since the epoch; ``config`` is the user's, as JSON."""

    protocol: int
    run: Id
    segment: Id
    rank: Index
    world_size: Annotated[int, Meta(ge=1, lt=2**31)]
    started_at: float
    project: Name
    name: Name | None
    tags: Annotated[list[Name], Meta(max_length=64)]
    config: Text
    environment: Annotated[dict[Name, Text], Meta(max_length=128)]
    scaler: ScalerSettings | None
    optimizers: Annotated[list[OptimizerSettings], Meta(max_length=64)]
    every: Annotated[int, Meta(ge=1, lt=2**31)]
    resumed: bool = False


class Parameter(Struct, array_like=True, frozen=True):
    """A watched parameter. ``compute_format`` names the format its gradient is computed in, once known."""

    name: Name
    module: Annotated[str, Meta(max_length=512)]
    shape: Annotated[list[Count], Meta(max_length=32)]
    dtype: Name
    numel: Count
    compute_format: Name | None


class Layout(Struct, tag="layout", frozen=True, kw_only=True):
    """The segment's parameters in forward order. Sent first, and again when more is known of them.

    A later layout keeps the order of the earlier one and may add parameters at its end, so an index names the
    same parameter throughout a segment. ``backward`` lists indexes as their gradients are produced; ``order``
    says how that is known: ``observed``, ``forward`` (the reverse of the module order) or ``unknown``.
    """

    sequence: Count
    parameters: Annotated[list[Parameter], Meta(max_length=20_000)]
    order: Order
    backward: Annotated[list[Index], Meta(max_length=20_000)]


class Column(Struct, array_like=True, frozen=True):
    """One quantity over a batch of updates: float64 values at the row numbers in ``rows`` (uint32)."""

    rows: bytes
    values: bytes


class Steps(Struct, tag="steps", frozen=True, kw_only=True):
    """A batch of attempted updates, ``first`` to ``first + count - 1``, every one of them.

    Columns are named as the series are: scale, skipped, growth_tracker, loss, learning_rate, step_ms,
    tokens, and the user's own. A value that is not there is absent from its column; NaN means NaN.
    ``at`` (float64, seconds since the epoch) is when each update closed.
    """

    sequence: Count
    first: Count
    count: Annotated[int, Meta(ge=1, le=65_536)]
    at: bytes
    columns: Annotated[dict[Name, Column], Meta(max_length=1024)]


class Sample(Struct, tag="sample", frozen=True, kw_only=True):
    """Exponent histograms of one step, one row for each index in ``parameters`` (int32; empty: all).

    Gradients are measured *as they stood, scaled* by ``scale`` (null without a scaler), accumulated over
    ``micro_batches`` backward passes (null: not known), before clipping.
    """

    sequence: Count
    step: Count
    at: float
    kind: SampleKind
    reason: SampleReason
    scale: float | None
    micro_batches: Count | None
    parameters: bytes
    table: PackedHistograms


class Event(Struct, tag="event", frozen=True, kw_only=True):
    """Something that happened at one update. ``data`` is a JSON object, its shape given by ``kind``.

    skip: scale, next_scale, parameter (first in backward order to be non-finite, or null with ``reason``),
    nonfinite ({parameter: count}), order, optimizers. growth, backoff, scale_set: scale, next_scale.
    dropped: messages, and by kind how many the trainer dropped by policy.
    """

    sequence: Count
    step: Count
    at: float
    kind: EventKind
    data: Text


class Bye(Struct, tag="bye", frozen=True, kw_only=True):
    """The last record of a segment; ``detail`` holds the exception of a crash."""

    sequence: Count
    at: float
    reason: ByeReason
    detail: Text


class Heartbeat(Struct, tag="heartbeat", frozen=True, kw_only=True):
    """The process lives. ``step`` is the last closed update and ``progress_at`` when it closed."""

    at: float
    step: Count | None
    progress_at: float | None
    pending: Count
    dropped: Count


class Welcome(Struct, tag="welcome", frozen=True, kw_only=True):
    """The server's answer to Hello. ``durable``: every sequence up to it is stored (-1: none)."""

    durable: Annotated[int, Meta(ge=-1)]
    server: Name


class Ack(Struct, tag="ack", frozen=True, kw_only=True):
    """All records sent on this connection with a sequence of at most ``durable`` are committed."""

    durable: Annotated[int, Meta(ge=-1)]


class Refused(Struct, tag="refused", frozen=True, kw_only=True):
    """The connection ends. ``retry`` says whether the same trainer may succeed later."""

    code: RefusalCode
    message: Text
    retry: bool


Record = Layout | Steps | Sample | Event | Bye
FromTrainer = Hello | Record | Heartbeat
FromServer = Welcome | Ack | Refused

Message = TypeVar("Message")

_encoder = msgspec.msgpack.Encoder()
_from_trainer = msgspec.msgpack.Decoder(FromTrainer)
_from_server = msgspec.msgpack.Decoder(FromServer)


def encode(message: FromTrainer | FromServer) -> bytes:
    return _encoder.encode(message)


def decode_from_trainer(frame: bytes) -> FromTrainer:
    """The message in ``frame``. Raises :class:`WireError` if it is none, or too large."""
    return _decoded(_from_trainer, frame)


def decode_from_server(frame: bytes) -> FromServer:
    """The message in ``frame``. Raises :class:`WireError` if it is none, or too large."""
    return _decoded(_from_server, frame)


def column(rows: NDArray[np.integer], values: NDArray[np.floating]) -> Column:
    """The column that holds ``values`` at ``rows`` (0 is the batch's first update)."""
    return Column(np.ascontiguousarray(rows, "<u4").tobytes(), np.ascontiguousarray(values, "<f8").tobytes())


def column_arrays(packed: Column, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rows int64, values float64) of a column over ``count`` updates.

    Raises:
        WireError: if the two differ in length or a row is outside the batch or out of order.
    """
    rows = _array(packed.rows, "<u4").astype(np.int64)
    values = _array(packed.values, "<f8")
    inside = rows.size == 0 or (rows[-1] < count and bool((np.diff(rows) > 0).all()))
    if len(rows) != len(values) or not inside:
        raise WireError(f"expected a column of rising rows below {count}, got {len(rows)} rows, {len(values)} values")
    return rows, values


def times(steps: Steps) -> NDArray[np.float64]:
    """When each update of the batch closed, float64 [count]. Raises :class:`WireError` on another length."""
    at = _array(steps.at, "<f8")
    if len(at) != steps.count or not np.isfinite(at).all():
        raise WireError(f"expected {steps.count} finite times, got {len(at)}")
    return at


def indexes(sample: Sample) -> NDArray[np.int64]:
    """Row number -> parameter index, int64 [rows]. Raises :class:`WireError` if they do not match the table."""
    rows = sample.table.rows
    found = _array(sample.parameters, "<i4").astype(np.int64) if sample.parameters else np.arange(rows)
    if len(found) != rows or (rows and (found.min() < 0 or len(np.unique(found)) != rows)):
        raise WireError(f"expected {rows} different parameter indexes, got {len(found)}")
    return found


def _array(raw: bytes, dtype: str) -> NDArray[Any]:
    if len(raw) % np.dtype(dtype).itemsize:
        raise WireError(f"expected whole {dtype} values, got {len(raw)} bytes")
    return np.frombuffer(raw, dtype)


def _decoded(decoder: msgspec.msgpack.Decoder[Message], frame: bytes) -> Message:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got {len(frame)}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"expected a message of protocol {PROTOCOL}, got: {error}") from error
