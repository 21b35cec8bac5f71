"""What all integrations share: the options of ``watch``, checked early, and a word for who lacks a framework."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from scalescope.errors import SettingError
from scalescope.integrations.attendant import Attendant
from scalescope.integrations.options import Known, Options, check, watch_known
from scalescope.watching import watch

from tests.programs import Programs
from tests.small_server import Shelf, SmallServer, farewell, serving
from tests.small_training import Course, bf16, steps

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_the_options_are_those_of_watch() -> None:
    taken = inspect.signature(watch).parameters.values()
    named = {parameter.name for parameter in taken if parameter.kind is parameter.KEYWORD_ONLY}
    assert Options.__annotations__.keys() == named - {"scheduler"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": 7},
        {"token": ""},
        {"run": "a b"},
        {"every": 0},
        {"project": ""},
        {"name": 7},
        {"tags": "x"},
        {"config": 7},
    ],
)
def test_what_watch_would_refuse_is_refused_early(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        check(wrong)  # type: ignore[arg-type]


def test_an_option_wins_over_what_the_framework_knows(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    known = Known(course.model, course.optimizer, name="the framework's", config={"of": "the framework"})
    watch_known(known, {"url": server.url, "name": "mine"}).close()
    assert (shelf.hellos[0].name, shelf.hellos[0].config) == ("mine", '{"of": "the framework"}')


def test_a_training_that_is_still_recorded_ends_when_the_next_begins(
    server: SmallServer, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, later = Course(precision=bf16), Course(precision=bf16), Shelf()
    monkeypatch.setenv("SCALESCOPE_URL", server.url)
    attendant = Attendant({})
    attendant.begin(Known(first.model, first.optimizer))
    first.run(2)
    with serving(later) as other:
        monkeypatch.setenv("SCALESCOPE_URL", other.url)
        attendant.begin(Known(second.model, second.optimizer))
        assert (farewell(shelf.records).reason, steps(shelf.records)) == ("finished", [0, 1])
        attendant.end(ValueError("broken"))
    assert (farewell(later.records).reason, steps(later.records)) == ("crashed", [])


def test_what_fails_while_a_framework_is_read_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise AttributeError("no such attribute in this version")

    Attendant({}).guard(fail)
    assert "no such attribute in this version" in caplog.text


@pytest.mark.parametrize(
    ("integration", "package", "install"),
    [
        ("huggingface", "transformers", "transformers[torch]"),
        ("accelerate", "accelerate", "accelerate"),
        ("lightning", "lightning", "lightning"),
    ],
)
def test_who_lacks_a_framework_is_told_what_to_install(
    programs: Programs, integration: str, package: str, install: str
) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = sys.modules["pytorch_lightning"] = None
try:
    import scalescope.integrations.{integration}
except ImportError as error:
    print(error)
"""
    assert (
        programs.run(code).stdout == f"scalescope.integrations.{integration} needs {install}: pip install {install}\n"
    )


def test_the_package_of_integrations_imports_no_framework_and_no_torch() -> None:
    code = """
import sys, scalescope.integrations
assert not {"torch", "transformers", "accelerate", "lightning"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


TWO_PACKAGES = """
import pytorch_lightning
{more}
import torch
from scalescope.integrations.lightning import ScalescopeCallback

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _place):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

from tests.small_frameworks import Batches
from torch.utils.data import DataLoader
callback = ScalescopeCallback()
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pytorch_lightning.Trainer(max_steps=3, accelerator="cpu", callbacks=[callback], **quiet)
trainer.fit(Module(), DataLoader(Batches(16), batch_size=4))
assert isinstance(callback, pytorch_lightning.Callback)
"""


@pytest.mark.parametrize("more", ["", "import lightning.pytorch"], ids=["alone", "beside lightning"])
def test_the_callback_is_one_of_pytorch_lightnings_where_that_is_imported(
    programs: Programs, more: str, server: SmallServer, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_URL", server.url)
    done = programs.run(TWO_PACKAGES.format(more=more))
    assert done.returncode == 0, done.stderr
    assert steps(shelf.records) == [0, 1, 2]
