"""The messages between a trainer and the server: msgpack, one message a WebSocket frame.

A connection begins with :class:`Hello`, answered by :class:`Welcome` or :class:`Refused`. After that the
trainer sends *records*, each with a sequence number of its own within (run, segment, rank), in order, and a
:class:`Heartbeat` now and then; the server answers :class:`Ack` once the records are durable.

Everything decoded here comes from outside and is bounded: sizes, lengths and ranges are part of the types,
so a message that breaks them is a :class:`WireError` before any room sees it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from scalescope.packing import PackedHistograms

PROTOCOL = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024
# The ``reason`` of a skip in which nothing overflowed: an optimizer was unscaled, and the loop never stepped it.
NOT_STEPPED = "not stepped"

Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Text = Annotated[str, Meta(max_length=16_384)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Index = Annotated[int, Meta(ge=0, lt=2**31)]
Order = Literal["observed", "forward", "unknown"]
SampleKind = Literal["grad", "weight", "forward", "grad_output"]
SampleReason = Literal["periodic", "skip", "request"]
Subject = Literal["parameter", "module"]
Placement = Literal["replicated", "sharded", "local"]
EventKind = Literal["skip", "growth", "backoff", "scale_set", "nonfinite", "dropped"]
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


class Part(Struct, array_like=True, frozen=True):
    """What one of several ranks reports of a parameter.

    ``replicated``: all ranks hold the same gradient, and one of them reports it. ``sharded``: each reports its own
    elements, which add up to the parameter. ``local``: each has a gradient of its own, alike by name alone.
    ``elements``: how many this rank reports, 0 where another one does. ``leads``: whether a sample of this rank's
    part counts as a sample of the parameter, which holds of one rank for each whole.
    """

    placement: Placement
    elements: Count
    leads: bool


class Parameter(Struct, array_like=True, frozen=True):
    """A watched parameter: ``shape`` and ``numel`` are those of the whole, over all ranks.

    ``compute_format`` names the format its gradient is computed in, once known.
    """

    name: Name
    module: Annotated[str, Meta(max_length=512)]
    shape: Annotated[list[Count], Meta(max_length=32)]
    dtype: Name
    numel: Count
    compute_format: Name | None


class Module(Struct, array_like=True, frozen=True):
    """A watched module: its name in the model ("" is the model itself) and its class."""

    name: Annotated[str, Meta(max_length=512)]
    kind: Name


class Layout(Struct, tag="layout", frozen=True, kw_only=True, omit_defaults=True):
    """The segment's parameters and modules in forward order. Sent first, and again when more is known of them.

    A later layout keeps the order of the earlier one and may add parameters and modules at the end, so an index
    names the same one throughout a segment. ``backward`` lists parameters as their gradients are produced;
    ``order`` says how that is known: ``observed``, ``forward`` (the reverse of the module order) or ``unknown``.
    ``parts`` has one entry for each parameter; it is empty where this rank alone reports every one whole.
    """

    sequence: Count
    parameters: Annotated[list[Parameter], Meta(max_length=20_000)]
    order: Order
    backward: Annotated[list[Index], Meta(max_length=20_000)]
    modules: Annotated[list[Module], Meta(max_length=20_000)] = []
    parts: Annotated[list[Part], Meta(max_length=20_000)] = []


class Column(Struct, array_like=True, frozen=True):
    """One quantity over a batch of updates: float64 values at the row numbers in ``rows`` (uint32)."""

    rows: bytes
    values: bytes


class Window(Struct, array_like=True, frozen=True):
    """What was alike in ``count`` consecutive updates: the facts of each one's window, a JSON object."""

    count: Annotated[int, Meta(ge=1, le=65_536)]
    data: Text


class Steps(Struct, tag="steps", frozen=True, kw_only=True, omit_defaults=True):
    """A batch of attempted updates, ``first`` to ``first + count - 1``, every one of them.

    Columns are named as the series are: scale, skipped, growth_tracker, loss, learning_rate, step_ms,
    tokens, and the user's own. A value that is not there is absent from its column; NaN means NaN.
    ``at`` (float64, seconds since the epoch) is when each update closed. ``windows`` covers the batch from its
    first update on, in order; what it leaves over has no facts.
    """

    sequence: Count
    first: Count
    count: Annotated[int, Meta(ge=1, le=65_536)]
    at: bytes
    columns: Annotated[dict[Name, Column], Meta(max_length=1024)]
    windows: Annotated[list[Window], Meta(max_length=65_536)] = []


class Sample(Struct, tag="sample", frozen=True, kw_only=True):
    """Exponent histograms of one step, one row for each index in ``parameters`` (int32; empty: all).

    Of the kinds ``forward`` and ``grad_output`` the indexes are those of modules. Gradients are measured *as they
    stood, scaled* by ``scale`` (null without a scaler), accumulated over ``micro_batches`` backward passes (null:
    not known), before clipping.
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


class Tally(Struct, tag="tally", frozen=True, kw_only=True):
    """Sums and maxima of one step, a row for each of the parameters or modules in ``indexes`` (int32; empty: all).

    ``columns`` holds float64 values by a name of :mod:`scalescope.numerics.tallies`, which says what each counts;
    NaN: not known. Values are as they stood, scaled by ``scale`` where they belong to a scaled backward.
    """

    sequence: Count
    step: Count
    at: float
    subject: Subject
    reason: SampleReason
    scale: float | None
    indexes: bytes
    columns: Annotated[dict[Name, bytes], Meta(max_length=64)]


class Probe(Struct, tag="probe", frozen=True, kw_only=True):
    """A reference probe: one micro-batch in the training's own precision and in fp32, before update ``step``.

    ``data`` is a JSON object: loss, reference_loss, scale, format, seconds, and what else is known of it. The
    rows and columns are as in :class:`Tally`, of parameters, without the scale.
    """

    sequence: Count
    step: Count
    at: float
    data: Text
    indexes: bytes
    columns: Annotated[dict[Name, bytes], Meta(max_length=64)]


class Setup(Struct, tag="setup", frozen=True, kw_only=True):
    """What holds of the training from ``step`` on, until the next one: a JSON object of named facts.

    Autocast and compute formats, precision flags, optimizer state and its formats, memory, parameters without
    a gradient. Sent when something of it has changed, whole.
    """

    sequence: Count
    step: Count
    at: float
    data: Text


class Event(Struct, tag="event", frozen=True, kw_only=True):
    """Something that happened at one update. ``data`` is a JSON object, its shape given by ``kind``.

    skip: scale, next_scale, parameter (first in backward order to be non-finite, or null with ``reason``),
    nonfinite ({parameter: count}), order, optimizers. growth, backoff, scale_set: scale, next_scale.
    nonfinite: where the first non-finite value was seen: ``where`` (input, forward, loss, backward, buffer,
    parameter), ``name`` of the module, buffer or parameter, ``count``, and ``also``: the first of the others.
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


class Heartbeat(Struct, tag="heartbeat", frozen=True, kw_only=True, omit_defaults=True):
    """The process lives. ``step`` is the last closed update and ``progress_at`` when it closed.

    ``sent_bytes``: what this segment has put on the wire, repetitions included. ``thread_cpu_s``: the CPU time that
    the hook's own thread took, in seconds; None where the system does not tell.
    """

    at: float
    step: Count | None
    progress_at: float | None
    pending: Count
    dropped: Count
    sent_bytes: Count = 0
    thread_cpu_s: float | None = None


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


Record = Layout | Steps | Sample | Tally | Probe | Setup | Event | Bye
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


def _decoded(decoder: msgspec.msgpack.Decoder[Message], frame: bytes) -> Message:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got {len(frame)}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"expected a message of protocol {PROTOCOL}, got: {error}") from error
