"""What the greeting tells: settings as numbers and flags, a configuration that always is JSON."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections import UserDict
from dataclasses import dataclass

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalescope.errors import SettingError
from scalescope.taps import facts
from scalescope.wire import OptimizerSettings, ScalerSettings
from torch import nn


def test_the_environment_names_where_a_training_runs() -> None:
    found = facts.environment()
    assert {"python", "torch", "platform", "hostname", "devices", "scalescope"} <= found.keys()


def test_an_optimizer_tells_numbers_and_flags_apart() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.5), eps=1e-6, fused=True)
    settings = facts.optimizer_settings(optimizer)
    assert settings.name == "AdamW"
    assert settings.values == {"lr": 0.5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
    assert settings.flags["fused"] is True
    assert "foreach" not in settings.flags
    assert msgspec.convert(msgspec.to_builtins(settings), OptimizerSettings) == settings


def test_a_scaler_tells_its_settings_before_its_first_use() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=7)
    assert facts.scaler_settings(scaler) == ScalerSettings(
        name="GradScaler", enabled=True, scale=128.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=7
    )


def test_growth_that_is_turned_off_by_an_endless_interval_can_be_told() -> None:
    settings = facts.scaler_settings(torch.amp.GradScaler("cpu", growth_interval=sys.maxsize))
    assert msgspec.convert(msgspec.to_builtins(settings), ScalerSettings).growth_interval == 2**53 - 1


@dataclass
class Config:
    width: int = 8
    rate: float = math.nan


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {}),
        ({"a": 1, "b": {"c": [True, None, "x"]}}, {"a": 1, "b": {"c": [True, None, "x"]}}),
        (Config(), {"width": 8, "rate": "nan"}),
        (Namespace(lr=0.1, dtype=torch.float16), {"lr": 0.1, "dtype": "torch.float16"}),
        ({1: (2, 3), "set": {4}}, {"1": [2, 3], "set": "{4}"}),
    ],
)
def test_a_configuration_of_any_kind_is_a_json_object(config: object, expected: object) -> None:
    assert json.loads(facts.config_text(config)) == expected


def test_a_configuration_that_is_too_large_says_what_it_left_out() -> None:
    text = facts.config_text({"small": 1, "large": "x" * 20_000, "other": 2})
    assert len(text) <= 16_384
    assert json.loads(text) == {"small": 1, "...": "2 entries left out"}


@given(st.dictionaries(st.text(), st.floats() | st.text() | st.integers() | st.binary()))
def test_any_configuration_fits_and_parses(config: dict[str, object]) -> None:
    text = facts.config_text(config)
    assert len(text) <= 16_384
    json.loads(text, parse_constant=pytest.fail)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Missing(UserDict[str, object]):
    def __getitem__(self, name: str) -> object:
        raise KeyError(name)


def test_a_value_that_cannot_be_read_costs_itself_alone() -> None:
    config = {"a": 1, "b": Unspeakable(), "c": [Unspeakable(), 2], "d": Missing(x=1)}
    assert json.loads(facts.config_text(config)) == {
        "a": 1,
        "b": "<RuntimeError>",
        "c": ["<RuntimeError>", 2],
        "d": {"x": "<KeyError>"},
    }
    assert json.loads(facts.config_text({Unspeakable(): 1})) == {"...": "<RuntimeError>"}


def test_a_configuration_that_contains_itself_ends() -> None:
    config: dict[str, object] = {"a": 1}
    config["self"] = [config]
    assert "nested too deeply" in facts.config_text(config)


def test_text_that_has_no_utf_8_is_told_by_its_numbers() -> None:
    assert facts.sendable("caf\udce9 é") == "caf\\udce9 é"
    assert json.loads(facts.config_text({"\udce9": "\udce9"})) == {"\\udce9": "\\udce9"}


def test_a_training_on_the_cpu_does_not_ask_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("asked"))
    assert facts.environment({torch.device("cpu")})["devices"].startswith("cpu, ")
    assert facts.environment({torch.device("cpu"), torch.device("meta")})["devices"] == "meta"


def test_a_configuration_that_has_no_entries_is_refused() -> None:
    with pytest.raises(SettingError, match="config"):
        facts.config_text(3)


@pytest.mark.parametrize(
    ("told", "world"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node"}, (1, 4)),
        # Without an address these are any scheduler's.
        ({"RANK": "1", "WORLD_SIZE": "4"}, (0, 1)),
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "node"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "4", "MASTER_ADDR": "node"}, (0, 1)),
        ({"MASTER_ADDR": "node"}, (0, 1)),
    ],
)
def test_before_the_ranks_meet_a_launcher_says_which_this_is(told: dict[str, str], world: tuple[int, int]) -> None:
    assert facts.world(told) == world


def test_outside_distributed_training_there_is_one_rank() -> None:
    assert facts.world() == (0, 1)
