"""What is found of each reported trouble with the loss scale, and that nothing is where nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scalescope_server.findings.catalogue import recall

from tests.cases.loops import Case
from tests.cases.scaling import SILENT, TROUBLES
from tests.serving import Address, Served, serving
from tests.small_link import until

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(str(tmp_path_factory.mktemp("cases") / "scalescope.db")) as served:
        yield served


def findings_of(served: Served, case: Case) -> list[dict[str, Any]]:
    """What is found of the run of ``case``, the worst first, once all of it is judged."""
    torch.manual_seed(0)
    run = case(served.url).run_id
    told = Address(served.port).get(f"/api/runs/{run}").json()
    assert told["state"] == "finished"
    until(lambda: is_judged(served, run, told["attempted"]))
    found: list[dict[str, Any]] = served.get(f"/api/runs/{run}/findings").json()["items"]
    return found


def is_judged(served: Served, run: str, updates: int) -> bool:
    """Whether all ``updates`` of it are, and its end."""
    judged, state = served.store.reader.judgement(run)
    case = recall(state)
    return judged == updates and case is not None and case.ended


@pytest.mark.parametrize("case", TROUBLES)
def test_a_reported_trouble_is_what_is_found_first(one_server: Served, case: str) -> None:
    loop, code = TROUBLES[case]
    found = findings_of(one_server, loop)
    assert [finding["code"] for finding in found][:1] == [code], found


@pytest.mark.parametrize("case", SILENT)
def test_of_what_is_nothing_wrong_with_there_is_info_at_most(one_server: Served, case: str) -> None:
    found = findings_of(one_server, SILENT[case])
    assert {finding["severity"] for finding in found} <= {"info"}, found
