"""The mirrors that a user means by what ``watch(..., mirror=...)`` was given."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from scalescope.errors import SettingError
from scalescope.mirrors.mirror import Mirror
from scalescope.mirrors.mlflow import MlflowMirror
from scalescope.mirrors.tensorboard import TensorBoardMirror
from scalescope.mirrors.wandb import WandbMirror

_EXPECTED = (
    "a run of W&B, a SummaryWriter of TensorBoard, a run or a client of MLflow, an object with scalars(points) and "
    "finding(finding), or a list of them"
)


def mirrors_of(given: object) -> list[Mirror]:
    """One, several in a list, or none for None.

    Raises:
        SettingError: for anything else, and for a library in which no run is active.
    """
    if given is None:
        return []
    return [_mirror_of(each) for each in (given if isinstance(given, list | tuple) else [given])]


def _mirror_of(given: Any) -> Mirror:  # noqa: ANN401 - of whichever library it is
    library = (given.__name__ if isinstance(given, ModuleType) else type(given).__module__).partition(".")[0]
    if library == "wandb":
        run = given.run if isinstance(given, ModuleType) else given
        return WandbMirror(_active(run if hasattr(run, "define_metric") else None, "wandb.init()"))
    if library == "mlflow":
        return _mlflow(given)
    if isinstance(given, Mirror):
        return given
    if callable(getattr(given, "add_scalar", None)) and callable(getattr(given, "add_text", None)):
        return TensorBoardMirror(given)
    raise SettingError("mirror", expected=_EXPECTED, got=type(given).__name__)


def _mlflow(given: Any) -> MlflowMirror:  # noqa: ANN401 - as above
    """Of the run that is given, or of the one that is active in this thread now: later another may be."""
    mlflow = import_module("mlflow")
    run = given if hasattr(given, "info") else _active(mlflow.active_run(), "mlflow.start_run()")
    client = given if hasattr(given, "log_batch") else mlflow.MlflowClient()
    return MlflowMirror(client, run.info.run_id)


def _active(run: Any, call: str) -> Any:  # noqa: ANN401 - as above
    if run is None:
        raise SettingError("mirror", expected=f"a run that is active: call {call} before watch()", got=None)
    return run
