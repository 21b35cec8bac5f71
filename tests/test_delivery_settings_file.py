"""The settings file: what it may say, and a sentence about what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.command import Command
from scalescope_server.delivery.settings_file import Delivery, read_settings_file
from scalescope_server.errors import SettingError

WHOLE = """
public_url = "https://scale.example.com/lab/"
allow_targets = ["10.1.0.0/16", "::1"]

[commands.siren]
arguments = ["/usr/local/bin/siren", "--loud"]
within_s = 5

[commands."on call"]
arguments = ["/bin/true"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_it_says_where_the_server_is_what_may_be_reached_and_what_may_be_started(file: Path) -> None:
    file.write_text(WHOLE)
    file.chmod(0o644)
    assert read_settings_file(file) == Delivery(
        "https://scale.example.com/lab",
        (parse_network("10.1.0.0/16"), parse_network("::1")),
        {"siren": Command(("/usr/local/bin/siren", "--loud"), 5.0), "on call": Command(("/bin/true",), 10.0)},
    )


def test_an_empty_one_says_nothing(file: Path) -> None:
    file.touch(0o600)
    assert read_settings_file(file) == Delivery()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("public_url = ", "Invalid value"),
        ("allow_target = []", "unknown field `allow_target`"),
        ('allow_targets = ["lab"]', "'lab' does not appear to be"),
        ('allow_targets = ["10.0.0.1/8"]', "host bits set"),
        ('public_url = "scale.example.com"', "expected an address such as"),
        ('public_url = "https://scale.example.com/?a=b"', "expected an address such as"),
        ('[commands.siren]\narguments = "/bin/true"', "Expected `array`"),
        ("[commands.siren]\narguments = []", "the whole path of a program"),
        ('[commands.siren]\narguments = ["siren"]', "the whole path of a program"),
        ('[commands."a/b"]\narguments = ["/bin/true"]', "letters, digits"),
        ('[commands.siren]\narguments = ["/bin/true"]\nwithin_s = 60', "at most 15"),
        ('[commands.siren]\narguments = ["/bin/true"]\nshell = true', "unknown field `shell`"),
    ],
)
def test_what_it_may_not_say_is_told_in_a_sentence(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(SettingError) as caught:
        read_settings_file(file)
    assert why in str(caught.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_one_that_others_may_write_is_refused_since_it_names_programs(file: Path, mode: int) -> None:
    file.touch()
    file.chmod(mode)
    with pytest.raises(SettingError, match="chmod go-w"):
        read_settings_file(file)


def test_one_that_is_not_there_is_told_of(file: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        read_settings_file(file)
