"""The API about rules: kept, checked, exported and imported, and tried on stored runs."""

from __future__ import annotations

from typing import Any

import pytest
from scalescope_server.rules.files import read_rules

from tests.serving import Served, bye, error, hello, ok, steps
from tests.small_link import until

MINE = {"name": "mine", "when": "when scale < 1", "severity": "critical", "channels": ["ops"]}


def add(served: Served, **changes: object) -> dict[str, Any]:
    answer = served.call("POST", "/api/rules", body=MINE | changes)
    assert answer.status == 201, answer.body
    found: dict[str, Any] = answer.json()
    return found


def own(served: Served) -> list[dict[str, Any]]:
    return [rule for rule in ok(served, "/api/rules")["items"] if not rule["built_in"]]


def post(served: Served, path: str, body: object) -> dict[str, Any]:
    answer = served.call("POST", path, body=body)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def test_rules_are_added_read_changed_and_deleted(served: Served) -> None:
    added = add(served)
    assert (added["name"], added["severity"], added["channels"]) == ("mine", "critical", ["ops"])
    assert (added["built_in"], added["edited"], added["error"]) == (False, False, None)
    assert own(served) == [added]
    assert ok(served, f"/api/rules/{added['id']}") == added
    changed = served.call("PUT", f"/api/rules/{added['id']}", body=MINE | {"when": "when scale < 2", "enabled": False})
    assert (changed.status, changed.json()["when"], changed.json()["enabled"]) == (200, "when scale < 2", False)
    assert served.call("DELETE", f"/api/rules/{added['id']}").status == 204
    assert own(served) == []
    assert error(served, f"/api/rules/{added['id']}", 404)["field"] == "rule"


def test_a_rule_is_switched_and_nothing_else_of_it_changes(served: Served) -> None:
    added = add(served)
    path = f"/api/rules/{added['id']}"
    changed = served.call("PUT", path, body=MINE | {"when": "when scale < 2"}).json()
    off = served.call("PATCH", path, body={"enabled": False}).json()
    assert (off["enabled"], off["when"]) == (False, "when scale < 2")
    assert off["revision"] > changed["revision"] > added["revision"]
    assert served.call("PATCH", path, body={"enabled": False}).json() == off
    assert error(served, "/api/rules/999", 404, "PATCH", {"enabled": True})["field"] == "rule"


def test_a_change_of_a_rule_that_somebody_has_changed_since_is_refused(served: Served) -> None:
    added = add(served)
    path = f"/api/rules/{added['id']}"
    seen = f"{path}?revision={added['revision']}"
    theirs = served.call("PUT", seen, body=MINE | {"when": "when scale < 2"})
    assert theirs.status == 200, theirs.body
    told = error(served, seen, 409, "PUT", MINE | {"when": "when scale < 4"})
    assert (told["code"], told["field"]) == ("conflict", "revision")
    assert "somebody has changed the rule 'mine'" in told["message"]
    assert ok(served, path) == theirs.json()


def test_the_names_that_a_sentence_may_use_are_told_with_what_they_are_told_in(served: Served) -> None:
    names = ok(served, "/api/rules/names")
    assert {"name": "flush_share", "quantity": "share"} in names["series"]
    assert {"name": "forward_headroom", "quantity": "number", "rows": "module"} in names["measures"]
    assert (names["compared"], "SCALE_THRASH" in names["findings"]) == (["scale", "skipped"], True)


def test_what_is_wrong_with_a_sentence_is_told_with_its_place(served: Served) -> None:
    told = error(served, "/api/rules", 422, "POST", MINE | {"when": "when scale < "})
    assert (told["code"], told["field"]) == ("invalid", "when")
    assert told["message"].startswith("when: at column 14: expected a value")
    (fault,) = post(served, "/api/rules/check", MINE | {"when": "when scle < 1"})["faults"]
    assert (fault["field"], fault["line"], fault["column"], fault["start"], fault["end"]) == ("when", 1, 6, 5, 9)
    assert 'did you mean "scale"?' in fault["message"]
    assert post(served, "/api/rules/check", MINE) == {"faults": []}
    assert own(served) == []


def test_a_name_is_given_once_and_not_as_built_in_ones_are(served: Served) -> None:
    add(served)
    assert error(served, "/api/rules", 409, "POST", MINE)["field"] == "name"
    assert error(served, "/api/rules", 422, "POST", MINE | {"name": "pack/mine"})["field"] == "name"
    assert error(served, "/api/rules", 422, "POST", MINE | {"colour": "red"})["field"] == "colour"


def test_built_in_rules_are_there_and_can_be_switched_off_but_not_deleted_or_renamed(served: Served) -> None:
    until(lambda: any(rule["built_in"] for rule in ok(served, "/api/rules")["items"]))
    built_in = [rule for rule in ok(served, "/api/rules")["items"] if rule["built_in"]]
    assert all(rule["enabled"] and rule["reason"] and rule["error"] is None for rule in built_in)
    rule = built_in[0]
    given = {name: rule[name] for name in ("name", "when", "severity", "keep_firing", "text", "cooldown")}
    path = f"/api/rules/{rule['id']}"
    off = served.call("PUT", path, body=given | {"enabled": False}).json()
    assert (off["enabled"], off["edited"], off["name"]) == (False, True, rule["name"])
    assert error(served, path, 422, "PUT", given | {"name": "other"})["field"] == "name"
    assert "switch it off instead" in error(served, path, 422, "DELETE")["message"]


def test_an_export_is_a_file_that_imports_as_the_same(served: Served) -> None:
    add(served)
    add(served, name="other", when='when max by layer(subnormal_share{layer="blocks.*"}) > 20% for 5 min', tag="fp16")
    answer = served.get("/api/rules/export")
    assert answer.headers["content-type"].startswith("application/yaml")
    text = answer.body.decode()
    assert [rule.name for rule in read_rules(text).rules] == ["mine", "other"]
    before = own(served)
    assert post(served, "/api/rules/import", {"text": text}) == {"added": 0, "changed": 0}
    assert own(served) == before
    changed = text.replace("when scale < 1", "when scale < 4").replace("name: other", "name: third")
    assert post(served, "/api/rules/import", {"text": changed}) == {"added": 1, "changed": 1}
    told = error(served, "/api/rules/import", 422, "POST", {"text": "rules:\n  - name: x\n    when: when scale <\n"})
    assert told["message"].startswith("rules.yaml:3:")
    assert [rule["name"] for rule in own(served)] == ["mine", "other", "third"]


def test_what_was_changed_of_the_built_in_rules_goes_into_a_file_and_comes_back(served: Served) -> None:
    until(lambda: any(rule["built_in"] for rule in ok(served, "/api/rules")["items"]))
    as_they_came = [rule for rule in ok(served, "/api/rules")["items"] if rule["built_in"]]
    whole = served.get("/api/rules/export?built_in=true").body.decode()
    assert post(served, "/api/rules/import", {"text": whole}) == {"added": 0, "changed": 0}
    text = """
        rules:
          - {name: pack/scale-zero, enabled: no}
          - {name: pack/loss-not-finite, severity: warning, channels: [ops]}
    """
    assert post(served, "/api/rules/import", {"text": text}) == {"added": 0, "changed": 2}
    changed = {rule["name"]: rule for rule in ok(served, "/api/rules")["items"] if rule["edited"]}
    assert sorted(changed) == ["pack/loss-not-finite", "pack/scale-zero"]
    assert (changed["pack/scale-zero"]["enabled"], changed["pack/scale-zero"]["severity"]) == (False, "critical")
    assert changed["pack/loss-not-finite"]["when"] == "when loss is not finite"
    exported = served.get("/api/rules/export").body.decode()
    assert exported.count("name:") == 2
    assert "when" not in exported
    assert post(served, "/api/rules/import", {"text": whole}) == {"added": 0, "changed": 2}
    back = [rule for rule in ok(served, "/api/rules")["items"] if rule["built_in"]]
    assert [rule["edited"] for rule in back] == [False] * len(back)
    assert [(rule["name"], rule["severity"], rule["enabled"]) for rule in back] == [
        (rule["name"], rule["severity"], rule["enabled"]) for rule in as_they_came
    ]
    assert post(served, "/api/rules/import", {"text": exported}) == {"added": 0, "changed": 2}
    told = error(served, "/api/rules/import", 422, "POST", {"text": "rules:\n  - name: pack/scale-zer\n"})
    assert told["message"].endswith('got "pack/scale-zer": did you mean "pack/scale-zero"?')


@pytest.fixture
def stored(served: Served) -> Served:
    """A run that falls below a scale of 1 twice, and a healthy one of the same project."""
    falling = [2.0] * 5 + [0.5] * 10 + [2.0] * 5 + [0.5] * 3
    for run, scales in (("falling", falling), ("well", [2.0] * 20)):
        with served.trainer(hello(run)) as trainer:
            trainer.deliver(steps(0, 0, len(scales), scale=scales), bye(1))
    assert served.call("PATCH", "/api/runs/well", body={"healthy": True}).status == 200
    return served


def test_a_backtest_names_each_firing_and_how_often_it_fired_on_healthy_runs(stored: Served) -> None:
    asked = {"rule": MINE | {"when": "when scale < 1 for 2 steps"}, "runs": ["falling", "well"]}
    found = post(stored, "/api/rules/backtest", asked)
    assert (found["count"], found["healthy_runs"], found["healthy_count"], found["updates"]) == (2, 1, 0, 43)
    falling, well = found["runs"]
    assert [(f["step"], f["held_step"], f["until_step"], f["steps"], f["value"]) for f in falling["firings"]] == [
        *((6, 5, 15, 9, 0.5), (21, 20, 22, 1, 0.5))
    ]
    assert (falling["state"], well["state"], well["healthy"], well["count"]) == ("quiet", "quiet", True, 0)
    last = post(stored, "/api/rules/backtest", asked | {"last": 8})
    assert [(run["updates"], run["first_step"], run["count"]) for run in last["runs"]] == [(8, 15, 1), (8, 12, 0)]


def test_without_a_run_a_rule_is_tried_on_those_that_it_applies_to(stored: Served) -> None:
    found = post(stored, "/api/rules/backtest", {"rule": MINE})
    assert {run["run"] for run in found["runs"]} == {"falling", "well"}
    found = post(stored, "/api/rules/backtest", {"rule": MINE | {"run": "other*"}})
    assert found["runs"] == []
    told = error(stored, "/api/rules/backtest", 404, "POST", {"rule": MINE, "runs": ["nowhere"]})
    assert told["field"] == "run"


def test_a_backtest_sees_findings_as_the_judge_does(stored: Served) -> None:
    when = {"when": "when finding(SCALE_COLLAPSE)"}
    found = post(stored, "/api/rules/backtest", {"rule": MINE | when, "runs": ["falling"]})
    assert found["runs"][0]["error"] is None
    assert found["runs"][0]["updates"] == 23
