"""The :class:`Scope` of a training: where its values are logged, where it stands, and how it is closed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch

from scalescope.agreement import Agreement
from scalescope.lifetime import Lifetime
from scalescope.link import Link
from scalescope.mirrors.echo import Echo, Echoed
from scalescope.mirrors.mirror import Mirror
from scalescope.numerics.measure import path_of, refused
from scalescope.recorder import Recorder
from scalescope.settings import Settings
from scalescope.taps.edge import Cost, Edge
from scalescope.taps.facts import devices_of
from scalescope.taps.probe.result import ProbeResult
from scalescope.taps.probe.run import LossFunction
from scalescope.taps.process import FINISHED, Ending, ending_by
from scalescope.taps.training import Training, TrainingTap
from scalescope.wire import Hello

_NO_COST = Cost(None, None, 0)


@dataclass(frozen=True, slots=True)
class Stats:
    """Where a scope stands.

    Attributes:
        sent: records sent to the server, repetitions included.
        pending: records that the server has not acknowledged yet.
        dropped: records given up because memory and disk were full, or because they could not be told.
        errors: failures inside the taps; training went on each time.
        refused: logged values that were no number.
        sent_bytes: bytes of all messages to the server, repetitions included.
        thread_cpu_s: CPU time of the thread that sends them, in seconds; None where the system does not tell.
        kernels: what gradients are measured by, for each kind of device they are on, and why by nothing faster.
        unmeasured: measurements on devices that this process left out, because there was no room left for more that
            nobody had read yet: samples lack what they would have told.
        unsampled, sampled: what the hook took of the training thread at updates whose gradients were not, or
            were, measured.
    """

    sent: int = 0
    pending: int = 0
    dropped: int = 0
    errors: int = 0
    refused: int = 0
    sent_bytes: int = 0
    thread_cpu_s: float | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    unmeasured: int = 0
    unsampled: Cost = _NO_COST
    sampled: Cost = _NO_COST


class Scope:
    """What ``watch`` returns. This class itself is the scope that is off: it watches and sends nothing."""

    @property
    def run_id(self) -> str:
        """The run that is recorded. Of several ranks only rank 0 knows it from the start, the others "" until told."""
        return ""

    @property
    def url(self) -> str:
        """Where it is shown; "" as long as ``run_id`` is."""
        return ""

    @property
    def stats(self) -> Stats:
        return Stats()

    # Positional-only, so that a value may have any name.
    def log(self, /, **values: object) -> None:
        """Record numbers, or tensors of one element, of the update whose backward ran last.

        Before the first backward they belong to the first update. Tensors on a device are read later, without
        a wait. ``tokens`` adds up over an update; of any other name the last value counts. What is not a
        number is left out and counted, never raised.
        """

    def probe(
        self, loss_fn: LossFunction, *, compare_update: bool = False, dtype: torch.dtype | None = None
    ) -> ProbeResult | None:
        """What the training's precision loses of one micro-batch: its gradients beside those of an fp32 backward.

        ``loss_fn`` is called in both, one after the other, and gives the loss of one micro-batch, not scaled, as the
        loop computes it inside of autocast. Afterwards the training is bit for bit as before. This takes several
        times as long as a micro-batch and waits for the device: for now and then, not for each update.

        Args:
            loss_fn: gives a tensor of one element, from the watched model; enters no autocast by itself.
            compare_update: also tell how far one update of both would be apart, in parameters and moments.
            dtype: what the training computes in, where that cannot be known before its first update.

        Returns:
            What was found, which is recorded too; None where it could not be, which is logged and recorded with
            the reason. Nothing is raised, whatever ``loss_fn`` raises.
        """

    def close(self) -> None:
        """Put every hook and class back, and deliver what is left: until acknowledged, at most 10 s.

        Called while an exception is on its way, as by ``finally``, it records that as the end.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LiveScope(Scope):
    """A scope that watches one training."""

    def __init__(
        self,
        training: Training,
        hello: Hello,
        settings: Settings,
        agreement: Agreement | None = None,
        mirrors: Sequence[Mirror] = (),
    ) -> None:
        self._server = settings.url
        # Not the exception itself, which holds all frames that it passed.
        self._handled_before = id(sys.exc_info()[1])
        self._refused = 0
        self._devices = devices_of(training.optimizers)
        self._edge = Edge()
        recorder = Recorder()
        # Not through this scope: the thread of the echo must not keep the training.
        echo = Echo(mirrors, settings, lambda: link.run_id, lambda: link.running) if mirrors else None
        link = Link(hello, settings, recorder if echo is None else Echoed(recorder, echo), agreement=agreement)
        self._link = link
        self._tap = self._edge.call(
            TrainingTap, training, recorder, self._edge, every=hello.every, adapts=settings.adapts, clock=time.time
        )
        self._edge.tap = self._tap
        if agreement is not None and self._tap is not None:
            agreement.on_alone = self._tap.shares.stand_alone
        self._lifetime = Lifetime(training.optimizers, self._edge, recorder, self._link, echo)
        recorder.on_news = self._link.wake
        self._link.start()
        if echo is not None:
            echo.start()

    @property
    def run_id(self) -> str:
        return self._link.run_id

    @property
    def url(self) -> str:
        return f"{self._server}/runs/{self.run_id}" if self.run_id else ""

    @property
    def stats(self) -> Stats:
        link = self._link.stats()
        return Stats(
            sent=link.sent,
            pending=link.pending,
            dropped=link.dropped,
            errors=self._edge.errors,
            refused=self._tap.refused if self._tap else self._refused,
            sent_bytes=link.sent_bytes,
            thread_cpu_s=link.thread_cpu_s,
            kernels={device.type: str(path_of(device)) for device in self._devices},
            unmeasured=refused(),
            unsampled=self._edge.cost(sampled=False),
            sampled=self._edge.cost(sampled=True),
        )

    def log(self, /, **values: object) -> None:
        if self._tap is not None:
            self._tap.log(values)

    def probe(
        self, loss_fn: LossFunction, *, compare_update: bool = False, dtype: torch.dtype | None = None
    ) -> ProbeResult | None:
        tap = self._tap
        return None if tap is None else tap.probe(loss_fn, compare_update=compare_update, dtype=dtype)

    def close(self) -> None:
        error = sys.exc_info()[1]
        # One that was being handled when the training began is not what ends it.
        self._end(FINISHED if id(error) == self._handled_before else ending_by(error))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(ending_by(error))

    def __reduce__(self) -> tuple[type[Scope], tuple[()]]:
        # A model may keep its scope; its copies and pickles are not watched.
        return Scope, ()

    def _end(self, ending: Ending) -> None:
        # A closed scope may be kept for its numbers: it keeps nothing of the training.
        self._refused, self._tap = self.stats.refused, None
        self._lifetime.end(ending)
