"""Statistics of nvdlfw-inspect, with the real library: what TransformerEngine's debug features log through."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import nvdlfw_inspect.api as debug
import pytest
import torch
from nvdlfw_inspect.logging import MetricLogger
from scalescope import Scope, watch
from scalescope.integrations.transformer_engine import StatisticsLogger

from tests.small_server import Shelf, SmallServer
from tests.small_training import Course, columns

pytestmark = pytest.mark.usefixtures("plain_environment")

CONFIG = """\
all_layers:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    stats: [max, l2_norm]
    tensors: [weight]
    freq: 1
"""


@pytest.fixture
def initialize(tmp_path: Path) -> Iterator[Path]:
    """The config of a debug session, which is ended afterwards."""
    path = tmp_path / "debug.yaml"
    path.write_text(CONFIG)
    yield path
    debug.end_debug()
    MetricLogger.enabled_loggers.clear()


def test_what_a_debug_feature_logs_is_a_series_of_the_run(
    server: SmallServer, shelf: Shelf, initialize: Path, tmp_path: Path
) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    with watch(course.model, course.optimizer, course.scaler, url=server.url) as scope:
        debug.initialize(
            config_file=str(initialize), statistics_logger=StatisticsLogger(scope), log_dir=str(tmp_path / "logs")
        )
        largest = []
        for _ in range(3):
            course.update()
            weight = course.model.layers[0].weight
            assert isinstance(weight, torch.Tensor)
            largest.append(weight.max().item())
            debug.log_tensor_stats("layers.0", tensor=weight, tensor_name="weight", skip_reduction=True)
            debug.step()
    found = columns(shelf.records)
    assert found["layers.0_weight_max"] == dict(enumerate(largest))
    assert list(found["layers.0_weight_l2_norm"]) == [0, 1, 2]


def test_names_are_bounded_and_what_is_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    taken = []

    class Listening(Scope):
        def log(self, /, **values: object) -> None:
            taken.append(values)

    statistics = StatisticsLogger(Listening(), most=2)
    with caplog.at_level(logging.WARNING, "scalescope"):
        for name in "abcda":
            statistics.log_scalar(f"{name}_amax", 1.0, 7)
    assert [*map(dict, taken)] == [{"a_amax": 1.0}, {"b_amax": 1.0}, {"a_amax": 1.0}]
    assert statistics.left_out == 2
    (line,) = caplog.messages
    assert "'c_amax'" in line
    assert "2 names" in line
