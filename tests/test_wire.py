"""The messages: what is written is read, what breaks a bound is an error of ours."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope.numerics.exponents import Histograms
from scalescope.packing import pack
from scalescope.rows import column, column_arrays, indexes, tallied, times
from scalescope.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    Ack,
    Bye,
    Column,
    Event,
    Heartbeat,
    Hello,
    Layout,
    OptimizerSettings,
    Parameter,
    Probe,
    Refused,
    Sample,
    ScalerSettings,
    Setup,
    Steps,
    Tally,
    Welcome,
    Window,
    WireError,
    decode_from_server,
    decode_from_trainer,
    encode,
)

HELLO = Hello(
    protocol=PROTOCOL,
    run="quiet-otter-7f",
    segment="s1",
    rank=0,
    world_size=1,
    started_at=1.0,
    project="default",
    name="<b>run</b>",
    tags=["fp16"],
    config='{"lr": 0.001}',
    environment={"torch": "2.13.0"},
    scaler=ScalerSettings(
        name="GradScaler", enabled=True, scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ),
    optimizers=[OptimizerSettings(name="AdamW", values={"lr": 1e-3}, flags={"fused": True})],
    every=10,
)
SAMPLES = Path(__file__).parent / "samples"
ROWS = np.array([0, 2])
STEPS = Steps(
    sequence=3,
    first=10,
    count=3,
    at=np.array([1.0, 2.0, 3.0]).tobytes(),
    columns={"loss": column(ROWS, np.array([np.nan, np.inf]))},
)
SAMPLE = Sample(
    sequence=4,
    step=10,
    at=1.0,
    kind="grad",
    reason="skip",
    scale=65536.0,
    micro_batches=None,
    parameters=b"",
    table=pack(Histograms.empty(3)),
)
TALLY = Tally(
    sequence=7,
    step=10,
    at=1.0,
    subject="module",
    reason="periodic",
    scale=65536.0,
    indexes=np.array([2, 0], "<i4").tobytes(),
    columns={"forward_amax": np.array([1.5, np.nan]).tobytes()},
)
PROBE = Probe(
    sequence=8, step=10, at=1.0, data='{"loss": 0.5}', indexes=b"", columns={"lost": np.array([3.0]).tobytes()}
)
LAYOUT = Layout(
    sequence=0,
    parameters=[Parameter("head.weight", "head", [4, 8], "float32", 32, "fp16")],
    order="observed",
    backward=[0],
)
FROM_TRAINER = [
    HELLO,
    LAYOUT,
    STEPS,
    SAMPLE,
    TALLY,
    PROBE,
    Setup(sequence=9, step=10, at=1.0, data='{"flags": {}}'),
    Event(sequence=5, step=10, at=1.0, kind="skip", data="{}"),
    Bye(sequence=6, at=2.0, reason="crashed", detail="ValueError: ..."),
    Heartbeat(at=1.0, step=None, progress_at=None, pending=0, dropped=0),
]
FROM_SERVER = [Welcome(durable=-1, server="0.1.0"), Ack(durable=7), Refused(code="token", message="...", retry=False)]


@pytest.mark.parametrize("message", FROM_TRAINER, ids=lambda m: type(m).__name__)
def test_a_trainer_message_is_read_as_it_was_written(message: Hello) -> None:
    assert decode_from_trainer(encode(message)) == message


@pytest.mark.parametrize("message", FROM_SERVER, ids=lambda m: type(m).__name__)
def test_a_server_message_is_read_as_it_was_written(message: Ack) -> None:
    assert decode_from_server(encode(message)) == message


@pytest.mark.parametrize("message", [*FROM_TRAINER, *FROM_SERVER], ids=lambda m: type(m).__name__)
def test_the_bytes_on_the_wire_are_those_of_protocol_1(message: Hello) -> None:
    """A trainer of yesterday meets a server of today: what these files hold stays readable and stays written."""
    golden = (SAMPLES / f"{type(message).__name__.lower()}.msgpack").read_bytes()
    decode = decode_from_server if message in FROM_SERVER else decode_from_trainer
    assert decode(golden) == message
    # Compressed bodies are the compressor's to choose; everything else is ours.
    assert isinstance(message, Sample) or encode(message) == golden


def test_a_server_message_is_not_taken_from_a_trainer() -> None:
    with pytest.raises(WireError, match="expected a message of protocol 1"):
        decode_from_trainer(encode(Ack(durable=1)))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_from_trainer(data)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(FROM_TRAINER), st.data())
def test_a_message_with_a_changed_byte_is_read_or_refused(message: Hello, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode_from_trainer(bytes(frame))


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="at most 16777216 bytes"):
        decode_from_trainer(bytes(MAX_FRAME_BYTES + 1))


def test_deeply_nested_bytes_are_an_error_of_ours() -> None:
    with pytest.raises(WireError):
        decode_from_trainer(b"\x91" * 100_000)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "a/../b"},
        {"run": ""},
        {"run": "x" * 65},
        {"rank": -1},
        {"world_size": 0},
        {"every": 0},
        {"tags": ["x"] * 65},
        {"config": "x" * 20_000},
        {"every": 2**31},
        {"name": "x" * 600},
    ],
)
def test_a_hello_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode_from_trainer(encode(msgspec.structs.replace(HELLO, **change)))


@pytest.mark.parametrize("change", [{"rows": 10**9}, {"rows": -1}, {"bins": 300}, {"low": 10**9}, {"width": 16}])
def test_a_sample_whose_table_is_out_of_bounds_is_refused_before_anything_is_made_of_it(change: dict[str, int]) -> None:
    table = msgspec.structs.replace(SAMPLE.table, **change)
    with pytest.raises(WireError):
        decode_from_trainer(encode(msgspec.structs.replace(SAMPLE, table=table)))


def test_a_column_keeps_absence_nan_and_infinity_apart() -> None:
    rows, values = column_arrays(STEPS.columns["loss"], STEPS.count)
    assert rows.tolist() == [0, 2]
    assert np.isnan(values[0])
    assert np.isinf(values[1])
    assert times(STEPS).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (np.array([0, 3]), np.zeros(2)),
        (np.array([1, 1]), np.zeros(2)),
        (np.array([2, 1]), np.zeros(2)),
        (np.array([0]), np.zeros(2)),
    ],
)
def test_a_column_outside_its_batch_is_refused(rows: np.ndarray, values: np.ndarray) -> None:
    with pytest.raises(WireError, match="rising rows below 3"):
        column_arrays(column(rows, values), 3)


def test_half_a_value_is_refused() -> None:
    with pytest.raises(WireError, match="whole <f8 values"):
        column_arrays(Column(b"", b"123"), 3)
    with pytest.raises(WireError, match="expected 3 finite times, got 1"):
        times(msgspec.structs.replace(STEPS, at=bytes(8)))
    with pytest.raises(WireError, match="expected 3 finite times"):
        times(msgspec.structs.replace(STEPS, at=np.array([1.0, np.nan, 2.0]).tobytes()))


def test_a_sample_names_its_parameters_or_means_all() -> None:
    assert indexes(SAMPLE).tolist() == [0, 1, 2]
    chosen = msgspec.structs.replace(SAMPLE, parameters=np.array([5, 1, 9], "<i4").tobytes())
    assert indexes(chosen).tolist() == [5, 1, 9]


def test_a_tally_holds_a_value_for_each_of_its_rows() -> None:
    rows, columns = tallied(TALLY)
    assert rows.tolist() == [2, 0]
    np.testing.assert_equal(columns, {"forward_amax": [1.5, np.nan]})
    assert tallied(PROBE)[0].tolist() == [0]


@pytest.mark.parametrize("columns", [{"lost": bytes(8), "products": bytes(16)}, {"lost": bytes(7)}])
def test_a_tally_whose_columns_do_not_fit_is_refused(columns: dict[str, bytes]) -> None:
    with pytest.raises(WireError, match=r"expected (columns of one length|whole <f8 values)"):
        tallied(msgspec.structs.replace(PROBE, columns=columns))


def test_modules_and_windows_that_were_not_told_take_no_bytes() -> None:
    """What a trainer of yesterday wrote is what one of today writes where it has nothing of the new to say."""
    assert b"modules" not in encode(LAYOUT)
    assert b"windows" not in encode(STEPS)
    told: Steps = msgspec.structs.replace(STEPS, windows=[Window(3, "{}")])
    assert decode_from_trainer(encode(told)) == told


@pytest.mark.parametrize("window", [Window(0, "{}"), Window(65_537, "{}"), Window(1, "x" * 20_000)])
def test_a_window_out_of_bounds_is_refused(window: Window) -> None:
    told: Steps = msgspec.structs.replace(STEPS, windows=[window])
    with pytest.raises(WireError):
        decode_from_trainer(encode(told))


@pytest.mark.parametrize("chosen", [[1, 2], [1, 1, 2], [-1, 0, 1]])
def test_a_sample_whose_parameters_do_not_match_its_rows_is_refused(chosen: list[int]) -> None:
    with pytest.raises(WireError, match="expected 3 different indexes"):
        indexes(msgspec.structs.replace(SAMPLE, parameters=np.array(chosen, "<i4").tobytes()))
