"""The API about alerts: what fires, who has taken it up, what is not to be told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import Served, Trainer, error, hello, ok, steps
from tests.small_link import until

RULE = {"name": "mine", "when": "when scale < 1", "channels": ["ops"]}


def own(served: Served, query: str = "") -> list[dict[str, Any]]:
    return [alert for alert in ok(served, f"/api/alerts{query}")["items"] if alert["name"] == "mine"]


@pytest.fixture
def trainer(served: Served) -> Iterator[Trainer]:
    """One whose run has made the rule fire."""
    assert served.call("POST", "/api/rules", body=RULE).status == 201
    with served.trainer(hello(world_size=1)) as connected:
        connected.deliver(steps(0, 0, 2, scale=[2.0, 0.5]))
        until(lambda: bool(own(served, "?state=firing")))
        yield connected


def test_an_alert_tells_its_run_its_moves_and_what_became_of_what_was_told(served: Served, trainer: Trainer) -> None:
    (alert,) = own(served)
    assert (alert["run"], alert["run_name"], alert["project"]) == ("run-1", "a run", "tests")
    assert (alert["state"], alert["since_step"], alert["value"], alert["open"]) == ("firing", 1, 0.5, True)
    assert [(moved["before"], moved["after"], moved["step"]) for moved in alert["transitions"]] == [
        ("quiet", "firing", 1)
    ]
    assert {(line["happened"], line["channel"]) for line in alert["deliveries"]} == {
        *(("fired", "ops"), ("fired", "browser"))
    }
    assert own(served, "?state=error&state=pending") == []
    # Meanwhile what it had to tell may have arrived.
    assert [found["id"] for found in own(served, "?run=run-1")] == [alert["id"]]
    assert own(served, "?run=another") == []


def test_an_alert_tells_in_which_unit_its_value_is_written_while_its_rule_is_there(served: Served) -> None:
    rule = served.call("POST", "/api/rules", body={"name": "mine", "when": "when rate(skipped, 2 steps) < 20%"}).json()
    with served.trainer(hello(world_size=1)) as connected:
        connected.deliver(steps(0, 0, 2, scale=[1.0, 1.0], skipped=[0.0, 0.0]))
        until(lambda: bool(own(served)))
        assert [(alert["value"], alert["unit"]) for alert in own(served)] == [(0.0, "%")]
        assert served.call("DELETE", f"/api/rules/{rule['id']}").status == 204
        assert [(alert["rule"], alert["unit"]) for alert in own(served)] == [(None, "")]


def test_the_list_of_runs_says_how_many_alerts_fire(served: Served, trainer: Trainer) -> None:
    assert ok(served, "/api/runs/run-1")["firing"] == len(
        ok(served, "/api/alerts?run=run-1&state=firing&state=recovering")["items"]
    )
    assert ok(served, "/api/runs")["items"][0]["firing"] >= 1


def test_a_firing_is_acknowledged_and_an_alert_is_muted_for_a_while(served: Served, trainer: Trainer) -> None:
    (alert,) = own(served)
    path, later = f"/api/alerts/{alert['id']}", time.time() + 3600
    taken = served.call("POST", f"{path}/acknowledge").json()
    assert (taken["state"], taken["acknowledged_at"] is not None) == ("firing", True)
    muted = served.call("POST", f"{path}/mute", body={"until": later}).json()
    assert muted["muted_until"] == later
    assert served.call("POST", f"{path}/mute", body={"until": None}).json()["muted_until"] is None
    trainer.deliver(steps(1, 2, 2, scale=[2.0, 0.5]))
    until(lambda: own(served)[0]["firings"] == 2)
    assert own(served)[0]["acknowledged_at"] is None
    for missing in ("acknowledge", "mute"):
        assert error(served, f"/api/alerts/999999/{missing}", 404, "POST", {"until": 1.0})["field"] == "alert"


def test_an_alerts_past_is_told_page_by_page(served: Served, trainer: Trainer) -> None:
    trainer.deliver(steps(1, 2, 40, scale=[2.0, 0.5] * 20))
    until(lambda: own(served)[0]["firings"] == 21)
    (alert,) = own(served, "?past=2")
    assert (len(alert["transitions"]), len(alert["deliveries"])) == (2, 2)
    for name in ("transitions", "deliveries"):
        path = f"/api/alerts/{alert['id']}/{name}?limit=9"
        page = ok(served, path)
        told = page["items"]
        while page["next"]:
            page = ok(served, f"{path}&cursor={page['next']}")
            assert len(page["items"]) <= 9
            told += page["items"]
        assert sorted({line["firing"] for line in told}) == list(range(1, 22))
        assert [line["at"] for line in told] == sorted((line["at"] for line in told), reverse=True)
        assert error(served, f"/api/alerts/999999/{name}", 404)["field"] == "alert"
        assert error(served, f"/api/alerts/{alert['id']}/{name}?cursor=x", 422)["field"] == "cursor"


def test_alerts_are_counted_by_rule_and_state(served: Served, trainer: Trainer) -> None:
    (alert,) = own(served)
    counts = ok(served, "/api/alerts/counts")
    assert {"rule": alert["rule"], "state": "firing", "open": True, "count": 1} in counts["items"]
    assert counts["open"] == len(ok(served, "/api/alerts?open=true")["items"])


def test_projects_are_silenced_for_a_while(served: Served) -> None:
    now = time.time()
    given = {"project": "team-*", "ends_at": now + 3600, "reason": "a move"}
    silence = served.call("POST", "/api/silences", body=given).json()
    assert (silence["project"], silence["ends_at"], silence["reason"]) == ("team-*", now + 3600, "a move")
    assert ok(served, "/api/silences")["items"] == [silence]
    assert served.call("DELETE", f"/api/silences/{silence['id']}").status == 204
    assert ok(served, "/api/silences")["items"] == []
    assert error(served, f"/api/silences/{silence['id']}", 404, "DELETE")["field"] == "silence"
    assert error(served, "/api/silences", 422, "POST", given | {"ends_at": now - 1})["field"] == "ends_at"
