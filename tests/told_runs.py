"""A run that tells everything a trainer can: windows, set-up, modules, tallies, a probe, times, non-finite values."""

from __future__ import annotations

import json

from scalescope.wire import Layout, Module, Parameter

from tests.batches import Dictation, histograms
from tests.serving import Served, hello

SCHEDULER = {"class": "StepLR", "steps": 1, "follows": "attempted"}
USUAL = {
    "micro_batches": 2,
    "zero_grad": True,
    "unscale": "explicit",
    "clip": {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 1},
}
CLIP = {"coefficient": 0.0078125, "intended": 1.0, "factor": 0.0078125, "scale": 128.0}


def tell(served: Served, *, name: str = "block") -> None:
    """Run "run-1" of 60 updates: a clip while scaled in 20 to 24, the 31st skipped, ``name`` called so throughout."""
    say = Dictation(1)
    usual = USUAL | {"scheduler": SCHEDULER | {"class": name}}
    wrong = usual | {"clip_while_scaled": CLIP, "stepped_outside": [name]}
    skipped = [float(step == 30) for step in range(60)]
    columns = {
        "scale": [65536.0] * 31 + [32768.0] * 29,
        "skipped": skipped,
        "step_ms": [9.0] * 60,
        "forward_ms": [2.0] * 60,
        "backward_ms": [4.0] * 60,
        "optimizer_ms": [1.0] * 60,
        "clip_coefficient": [0.5] * 60,
        "scheduler_steps": [float(step + 1) for step in range(60)],
    }
    state = [{"optimizer": name, "group": 0, "dtypes": {name: "float32"}, "eps": 1e-8, "eps_lost": False}]
    with served.trainer(hello()) as trainer:
        trainer.deliver(
            named_layout(name),
            say.setup(
                0,
                autocast={name: "fp16"},
                modules={name: "float16"},
                optimizer_state=state,
                bytes={"parameters": 2048, "gradients": 2048, "optimizer_state": 4096, "buffers": 0, "peak": 2**20},
                without_gradient=[name],
            ),
            say.steps(0, 60, (20, usual), (5, wrong), (35, usual), **columns),
            say.sample(0, histograms([-10], [-10])),
            say.tally(0, update_squares=[1e-6, 1e-6], weight_squares=[1.0, 1.0]),
            say.tally(0, intended=[8.0, 8.0], absorbed_fp16=[0.0, 0.0], absorbed_bf16=[2.0, 4.0]),
            say.tally(10, subject="module", scale=1024.0, forward_amax=[1.0, 65504 / 2], grad_output_amax=[1.0, 8.0]),
            say.probe(4, {"loss": 1.5}, indexes=[0], lost=[3.0], reference_nonzero=[12.0], own_nonfinite=[0.0]),
            say.event(30, "skip", json.dumps({"scale": 65536.0, "next_scale": 32768.0, "parameter": name})),
            say.event(30, "nonfinite", json.dumps({"where": "forward", "name": name, "count": 7, "also": []})),
            say.event(40, "nonfinite", json.dumps({"where": "forward", "name": name, "count": 1, "also": []})),
        )


def named_layout(name: str) -> Layout:
    listed = [
        Parameter(f"{name}.weight", name, [4], "float32", 4, "fp16"),
        Parameter("bias", "", [4], "float32", 4, None),
    ]
    return Layout(
        sequence=0,
        parameters=listed,
        order="observed",
        backward=[1, 0],
        modules=[Module("", "Net"), Module(name, name)],
    )
