"""A text with the sign NUL, which Postgres cannot hold, is stored all the same, and is found under its own name."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest
from scalescope.wire import Bye
from scalescope_server.store.engine import open_store
from scalescope_server.store.errors import NotFound
from scalescope_server.store.records import RunId
from scalescope_server.store.texts import UNREADABLE, storable

from tests.batches import Dictation, batch, hello


@pytest.mark.both_engines
def test_no_text_of_a_trainer_or_a_user_is_refused_by_an_engine(database: str) -> None:
    caller = msgspec.structs.replace(hello(config='{"a": "x\\u0000y"}', tags=["t\0"]), name="run\0", project="p\0")
    with closing(open_store(database)) as store:
        sequence = 0
        for first in (0, 4):
            say = Dictation(sequence)
            records = (
                say.layout(("w\0", "fp16"), modules=["m\0"]),
                say.event(first, "skip", '{"parameter": "w\\u0000"}'),
                say.steps(first, 4, (4, {"x\0": "y\0"}), **{"mine\0": [1.0] * 4}),
            )
            assert store.writer.append(batch(caller, *records)).result().stored == 3
            sequence = say.sequence
        end = Bye(sequence=sequence, at=9.0, reason="crashed", detail="why\0")
        store.writer.append(batch(caller, end)).result()
        store.writer.patch_run(RunId("run"), note="note\0").result()
        detail = store.reader.run("run")
        assert [parameter.name for parameter in detail.parameters] == [f"w{UNREADABLE}"]
        assert [module.name for module in detail.modules] == [f"m{UNREADABLE}"]
        _, found = store.reader.series("run", [f"mine{UNREADABLE}"])
        assert found[f"mine{UNREADABLE}"].step.tolist() == list(range(8))
        with pytest.raises(NotFound):
            store.reader.run("run\0")
        store.reader.runs(text="\0nowhere")


def test_other_texts_are_left_as_they_are() -> None:
    assert storable("") == ""
    assert storable("é\u2028\x01") == "é\u2028\x01"
