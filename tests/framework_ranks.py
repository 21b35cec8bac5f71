"""A rank that trains in each framework, its place in the environment."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from scalescope.integrations import accelerate, huggingface, lightning

from tests.small_frameworks import Learner, scaler_of
from tests.test_integrations_huggingface import trainer_of
from tests.test_integrations_lightning import Lit, loader
from tests.test_integrations_lightning import trainer_of as trainer_of_lightning

UPDATES = 4
BATCH = torch.ones(2, 8)


def by_accelerate() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.scaler, accelerator.native_amp = scaler_of(), True
    learner = Learner({2})
    model, optimizer = accelerator.prepare(learner, torch.optim.SGD(learner.parameters(), lr=0.1))
    with accelerate.watch(accelerator, model, optimizer, project="accelerate"):
        for _ in range(UPDATES):
            accelerator.backward(model(BATCH))
            optimizer.step()
            optimizer.zero_grad()


def by_the_trainer(folder: Path) -> None:
    # Made while fp16 is the precision that Accelerate's one state holds.
    callback = huggingface.ScalescopeCallback(project="huggingface")
    trainer_of(folder, callback, max_steps=UPDATES, ddp_find_unused_parameters=False).train()


def by_fabric() -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(), precision="bf16-mixed")
    fabric.launch()
    learner = Learner()
    model, optimizer = fabric.setup(learner, torch.optim.SGD(learner.parameters(), lr=0.1))
    with lightning.watch(fabric, model, optimizer, project="fabric"):
        for _ in range(UPDATES):
            fabric.backward(model(BATCH))
            optimizer.step()
            optimizer.zero_grad()


def by_lightning() -> None:
    callback = lightning.ScalescopeCallback(project="lightning")
    settings = {"strategy": "ddp", "devices": 2, "max_steps": UPDATES, "val_check_interval": 2}
    trainer_of_lightning("16-mixed", callback, **settings).fit(Lit({2}), loader(), loader(2))


def main(rank: int, world: int, rendezvous: str, port: str) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    os.environ.update(place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    torch.manual_seed(0)
    by_accelerate()
    by_the_trainer(Path(rendezvous).parent)
    by_fabric()
    by_lightning()
    torch.distributed.destroy_process_group()
