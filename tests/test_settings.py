"""Arguments win over the environment; only a bad argument raises."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from scalescope.errors import ScalescopeError, SettingError
from scalescope.settings import DEFAULT_URL, ingest_url, parse_url, read_settings, state_folder


def test_nothing_set_gives_the_documented_defaults() -> None:
    settings = read_settings({"XDG_STATE_HOME": "/state"})
    assert (settings.url, settings.token, settings.run, settings.every) == (DEFAULT_URL, None, None, 10)
    assert settings.spool == Path("/state/scalescope/spool")
    assert not settings.off


def test_the_environment_is_read() -> None:
    settings = read_settings(
        {
            "SCALESCOPE_URL": "https://Scale.example:8443/scope/",
            "SCALESCOPE_TOKEN": "secret",
            "SCALESCOPE_RUN": "run-1",
            "SCALESCOPE_EVERY": "25",
            "SCALESCOPE_SPOOL": "/data/spool",
            "SCALESCOPE_OFF": "1",
        }
    )
    assert settings.url == "https://scale.example:8443/scope"
    assert (settings.token, settings.run, settings.every) == ("secret", "run-1", 25)
    assert (settings.spool, settings.off) == (Path("/data/spool"), True)


def test_an_argument_wins_over_the_environment() -> None:
    environ = {"SCALESCOPE_URL": "http://a", "SCALESCOPE_EVERY": "5", "SCALESCOPE_RUN": "a", "SCALESCOPE_TOKEN": "a"}
    settings = read_settings(environ, url="http://b", every=7, run="b", token="b")
    assert (settings.url, settings.every, settings.run, settings.token) == ("http://b", 7, "b", "b")


def test_an_empty_variable_is_not_set() -> None:
    assert read_settings({"SCALESCOPE_URL": "", "SCALESCOPE_OFF": ""}) == read_settings({})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCALESCOPE_URL", "localhost:8765"),
        ("SCALESCOPE_TOKEN", "two words"),
        ("SCALESCOPE_RUN", "a/b"),
        ("SCALESCOPE_EVERY", "often"),
        ("SCALESCOPE_EVERY", "0"),
        ("SCALESCOPE_OFF", "maybe"),
    ],
)
def test_a_bad_environment_is_one_log_line_and_the_default(
    variable: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="scalescope"):
        assert read_settings({variable: value}) == read_settings({})
    (line,) = caplog.messages
    assert variable in line
    assert "the default is used" in line


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a",
        "http://",
        "http://a:0",
        "http://a:99999",
        "http://me:pw@a",
        "http://a?x=1",
        "http://a b",
        "http://[a",
    ],
)
def test_a_bad_url_given_as_argument_raises(url: str) -> None:
    with pytest.raises(SettingError, match="url: expected the address of a server") as caught:
        read_settings({}, url=url)
    assert isinstance(caught.value, ScalescopeError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.got == url


@pytest.mark.parametrize("every", [0, 10**20])
def test_a_bad_interval_given_as_argument_raises(every: int) -> None:
    with pytest.raises(SettingError, match="every: expected a whole number of updates from 1 to 1000000000, got"):
        read_settings({}, every=every)


def test_the_token_shows_neither_in_the_repr_nor_in_an_error() -> None:
    assert "secret" not in repr(read_settings({}, token="secret"))
    with pytest.raises(SettingError) as caught:
        read_settings({}, token="secret\nX: y")
    assert "secret" not in str(caught.value)


def test_two_spellings_of_a_server_are_one() -> None:
    assert parse_url("url", "HTTP://Host:8765/") == parse_url("url", "http://host:8765")


def test_trainers_send_to_the_ingest_socket_below_the_servers_path() -> None:
    assert ingest_url("http://127.0.0.1:8765") == "ws://127.0.0.1:8765/api/ingest"
    assert ingest_url("https://a/scope") == "wss://a/scope/api/ingest"


def test_a_relative_state_home_is_ignored_as_its_standard_says() -> None:
    assert state_folder({"XDG_STATE_HOME": "here"}) == Path.home() / ".local" / "state" / "scalescope"


def test_a_budget_decides_how_often_where_nobody_has_chosen() -> None:
    assert read_settings({}).adapts
    assert not read_settings({}, every=10).adapts
    assert not read_settings({"SCALESCOPE_EVERY": "10"}).adapts
