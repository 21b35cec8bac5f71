"""The server's settings: arguments over the environment over defaults, and what cannot be used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scalescope_server.errors import SettingError
from scalescope_server.settings import bracketed, default_database, is_loopback, read_settings


def test_the_defaults_listen_on_loopback_without_a_token() -> None:
    settings = read_settings({"HOME": "/home/u"})
    assert (settings.host, settings.port, settings.token) == ("127.0.0.1", 8765, None)
    assert settings.database == "/home/u/.local/share/scalescope/scalescope.db"


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/home/u"}, "linux", "/home/u/.local/share/scalescope/scalescope.db"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "/data"}, "linux", "/data/scalescope/scalescope.db"),
        ({"HOME": "/Users/u"}, "darwin", "/Users/u/Library/Application Support/scalescope/scalescope.db"),
        ({"HOME": "/u", "LOCALAPPDATA": "/u/local"}, "win32", "/u/local/scalescope/scalescope.db"),
    ],
)
def test_the_default_database_is_one_place_on_each_platform(
    environ: dict[str, str], platform: str, expected: str
) -> None:
    assert default_database(environ, platform) == Path(expected)


def test_arguments_win_over_the_environment() -> None:
    environ = {"SCALESCOPE_DATABASE": "env.db", "SCALESCOPE_TOKEN": "env", "SCALESCOPE_ALLOW_HOST": "a.lab, B.lab"}
    told = read_settings(environ)
    assert (told.database, told.token, told.allow_hosts) == ("env.db", "env", ("a.lab", "b.lab"))
    given = read_settings(environ, database="arg.db", token="arg", allow_hosts=["c.lab"])
    assert (given.database, given.token, given.allow_hosts) == ("arg.db", "arg", ("c.lab", "a.lab", "b.lab"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "gpu-box", ""])
def test_a_host_that_others_can_reach_gets_a_token_of_its_own(host: str) -> None:
    first, second = read_settings({}, host=host).token, read_settings({}, host=host).token
    assert first is not None
    assert len(first) >= 32
    assert first != second


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert read_settings({}, host=host).token is None


@pytest.mark.parametrize("token", ["", "two words", "tab\t", "ümlaut", "x" * 513])
def test_a_token_that_cannot_travel_is_refused(token: str) -> None:
    with pytest.raises(SettingError, match="expected a token") as caught:
        read_settings({}, token=token)
    assert caught.value.field == "token"


def test_a_token_is_not_shown_with_the_settings() -> None:
    assert "hidden-token" not in repr(read_settings({}, token="hidden-token"))


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_outside_the_range_is_refused(port: int) -> None:
    with pytest.raises(SettingError, match="expected a port from 0 to 65535"):
        read_settings({}, port=port)


def test_a_root_path_is_normal_or_refused() -> None:
    assert read_settings({}, root_path="/a/b/").root_path == "/a/b"
    assert read_settings({}, root_path="/").root_path == ""
    for wrong in ("a", "/a b", "/a//b", "http://x", '/a"'):
        with pytest.raises(SettingError, match="expected a root path"):
            read_settings({}, root_path=wrong)


def test_the_time_until_a_run_is_silent_is_sensible_or_refused() -> None:
    assert read_settings({}).silent_after_s == 60.0
    assert read_settings({}, silent_after_s=15).silent_after_s == 15.0
    for wrong in (0.0, -1.0, 9.9, math.inf, math.nan):
        with pytest.raises(SettingError, match="expected at least 10 seconds") as caught:
            read_settings({}, silent_after_s=wrong)
        assert caught.value.field == "silent_after"


def test_addresses_hold_ipv6_in_brackets() -> None:
    assert (bracketed("::1"), bracketed("127.0.0.1"), bracketed("[::1]")) == ("[::1]", "127.0.0.1", "[::1]")


def test_links_lead_to_the_public_address_that_was_told_or_to_where_it_listens(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('public_url = "https://file.example.com"')
    file.chmod(0o600)
    environ = {"SCALESCOPE_SETTINGS": str(file)}
    assert read_settings(environ).public_url == "https://file.example.com"
    assert (
        read_settings(environ, public_url="https://argument.example.com/").public_url == "https://argument.example.com"
    )
    environ["SCALESCOPE_PUBLIC_URL"] = "https://variable.example.com"
    assert read_settings(environ).public_url == "https://variable.example.com"
    assert read_settings({}, host="0.0.0.0", port=80, root_path="/lab").public_url == "http://127.0.0.1:80/lab"
    assert read_settings({}, host="::1").public_url == "http://[::1]:8765"
    assert read_settings({}, port=0).public_url is None


def test_a_settings_file_or_public_address_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(SettingError, match="cannot be used"):
        read_settings({}, settings_file="/nowhere/settings.toml")
    with pytest.raises(SettingError, match="expected an address"):
        read_settings({}, public_url="scale.example.com")
