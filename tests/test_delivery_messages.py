"""What people and programs read: what happened, the numbers, the culprit, and a link to exactly that view."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalescope_server.delivery.messages import (
    LEAST_WORDS,
    MOST_LINES,
    fill,
    fitted,
    link,
    message_of,
    number,
    one_line,
    sentence,
)
from scalescope_server.delivery.notice import Notice, notice_key

from tests.notices import notice

URL = "https://scale.example.com/lab"


def test_one_alert_is_told_with_numbers_culprit_and_a_link_to_the_updates_around_it() -> None:
    message = message_of("key", [notice()], ["key"], URL)
    assert message.title == "warning: many skips on small gpt (demo)"
    assert message.text == (
        "many skips fires at update 1,000: skipped in 8 of 10 updates "
        "(value 0.125, culprit blocks.0.attn.weight). Loss scale 65536.\n"
        f"{URL}/runs/run-1?from=790&to=1201"
    )
    assert (message.key, message.type, message.severity) == ("key", "alerts", "warning")


def test_the_end_of_an_alert_is_told_as_such() -> None:
    message = message_of("key", [notice(happened="resolved", step=1200, value=None)], ["key"], None)
    assert message.title == "resolved: many skips on small gpt (demo)"
    assert message.text == "many skips is over at update 1,200."
    assert message.url is None


def test_where_no_update_came_there_is_none_in_the_text_and_the_link() -> None:
    silent = notice(step=None, first_step=None, value=None, culprit=None, scale=None, condition="no update for 10 min")
    message = message_of("key", [silent], ["key"], URL)
    assert message.text == f"many skips fires: no update for 10 min.\n{URL}/runs/run-1"


def test_a_storm_is_counted_and_its_gravest_comes_first() -> None:
    storm = [notice(rule=f"rule {n}", step=n, first_step=n) for n in range(30)]
    storm.append(notice(rule="worst", severity="critical", step=40))
    message = message_of("key", storm, [str(n) for n in range(31)], URL)
    assert message.title == "31 alerts on small gpt (demo): 1 critical, 30 warning"
    lines = message.text.splitlines()
    assert lines[0].startswith("critical: worst fires at update 40")
    assert lines[MOST_LINES:] == ["and 11 more", f"{URL}/runs/run-1?from=0&to=1191"]
    assert message.severity == "critical"
    assert len(message.alerts) == 31


def test_each_alert_of_a_message_has_the_key_that_it_is_always_told_under() -> None:
    told = [notice(firing=1), notice(firing=2), notice(firing=2, happened="resolved")]
    message = message_of("key", told, ["a", "b", "c"], None)
    assert [one.key for one in message.alerts] == ["a", "b", "c"]
    assert len({notice_key(one, channel) for one in told for channel in ("chat", "pager")}) == 6
    assert notice_key(notice(rule="a", run="bc"), "x") != notice_key(notice(rule="ab", run="c"), "x")


def test_of_one_alert_the_order_of_what_happened_is_kept_whatever_times_and_severities_say() -> None:
    told = [
        notice(rule="mild", severity="info"),
        notice(rule="mine", at=9.0),
        notice(rule="mine", happened="resolved", severity="critical", at=1.0),
    ]
    message = message_of("key", told, ["a", "b", "c"], None)
    assert [one.key for one in message.alerts] == ["b", "c", "a"]
    assert message.severity == "critical"


def test_a_value_is_written_as_its_rule_writes_it() -> None:
    told = {"value": 0.3125, "culprit": None, "text": "{value}"}
    assert [sentence(notice(**told, unit=unit)) for unit in ("", "%", "ms", "s")] == [
        *("0.3125", "31.25%"),
        *("0.3125 ms", "0.3125 s"),
    ]
    assert sentence(notice(value="inf", culprit=None, unit="%", text="{value}")) == "inf"
    assert "(value 31.25%)" in sentence(notice(value=0.3125, culprit=None, unit="%"))


def test_a_firing_that_stands_for_others_says_so() -> None:
    assert sentence(notice(unsaid=1)).endswith(" It flaps: before that it fired once more than was told.")
    assert sentence(notice(text="!", unsaid=1200)) == "! It flaps: before that it fired 1,200 times more than was told."


LINES = [f"line {n} {'x' * 60}" for n in range(30)]


@given(st.integers(10, 3000), st.integers(1, 30), st.sampled_from([None, URL, URL + "/" + "y" * 300]))
def test_a_text_is_fitted_to_any_limit(limit: int, count: int, url: str | None) -> None:
    text = fitted(LINES[:count], url, lambda text: len(text) <= limit)
    assert len(text) <= limit
    shown = [line for line in text.splitlines() if line in LINES]
    assert shown == LINES[: len(shown)]
    if limit >= LEAST_WORDS + len(f"\nand 29 more\n{url or ''}"):
        more = count - max(len(shown), 1)
        assert text.splitlines()[max(len(shown), 1) :] == [
            *[f"and {more} more"] * (more > 0),
            *[url] * (url is not None),
        ]


def test_of_a_sentence_that_is_too_long_the_beginning_and_the_link_are_there() -> None:
    assert fitted(["w" * 500, "other"], URL, lambda text: len(text) <= 120) == f"{'w' * 78}…\nand 1 more\n{URL}"
    assert fitted(["w" * 500], URL + "y" * 200, lambda text: len(text) <= 120) == f"{'w' * 119}…"


def test_the_json_holds_everything_and_no_number_that_json_has_not() -> None:
    body = msgspec.json.encode(message_of("key", [notice(value="inf")], ["key"], URL))
    told = json.loads(body, parse_constant=pytest.fail)
    assert set(told) == {"key", "type", "version", "title", "text", "severity", "url", "run", "alerts"}
    assert told["run"] == {"id": "run-1", "name": "small gpt", "project": "demo", "url": f"{URL}/runs/run-1"}
    assert (told["alerts"][0]["value"], told["alerts"][0]["culprit"]) == ("inf", "blocks.0.attn.weight")


def test_a_template_is_filled_and_what_is_no_place_stays() -> None:
    template = "{severity} {rule}: {value} at {step} in {run} of {project}, {culprit}, {scale}"
    told = "warning many skips: 0.125 at 1000 in small gpt of demo, blocks.0.attn.weight, 65536"
    assert fill(template, notice()) == told
    assert fill("{nothing} {} {run.__class__} {0}", notice()) == "{nothing} {} {run.__class__} {0}"
    # What is filled in is not filled itself.
    assert fill("{run}", notice(run_name="{value}")) == "{value}"
    assert message_of("k", [notice(text="{rule}!")], ["k"], None).text == "many skips!"
    # It speaks of what fires, not of its end.
    assert message_of("k", [notice(text="{rule}!", happened="resolved")], ["k"], None).text.startswith(
        "many skips is over"
    )


def test_names_of_a_trainer_are_one_line_each_and_not_too_long() -> None:
    assert one_line("a\nb\r\n\tc\u202e d\x1b[31m") == "a b c  d [31m"
    assert len(one_line("x" * 1000)) == 200
    message = message_of("k", [notice(run_name="evil\nrun", rule="r\nr", culprit="c\n\nc")], ["k"], None)
    assert "\n" not in message.title + message.text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), ("nan", "nan"), (3.0, "3"), (0.1, "0.1"), (1 / 3, "0.333333"), (2.0**60, "1.15292e+18"), (-2.0, "-2")],
)
def test_numbers_are_as_people_read_them(value: object, text: str) -> None:
    assert number(value) == text  # type: ignore[arg-type]  # the cases are of several types


def test_a_run_in_a_link_is_quoted() -> None:
    assert link(URL, [notice(run="a/b?c", step=None, first_step=None)]) == f"{URL}/runs/a%2Fb%3Fc"


def test_a_test_says_that_it_is_one() -> None:
    test = Notice(
        rule="", severity="info", run="", run_name="", project="", happened="test", firing=0, step=None, at=0.0
    )
    message = message_of("key", [test], ["key"], URL)
    assert (message.type, message.title, message.url) == ("test", "Scalescope: a test", None)
