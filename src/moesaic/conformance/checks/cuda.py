"""Promises that only a CUDA device can break: graphs, reads on the host, streams and devices."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final
from warnings import catch_warnings, simplefilter

import torch
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check, has_plain_sizes
from moesaic.conformance.checks.ownership import batch_tensors
from moesaic.conformance.feeding import CALM, NAN, Fed, Poison
from moesaic.conformance.subject import Subject
from moesaic.conformance.turned import turned
from moesaic.errors import Nonconformance

BUSY = 50_000_000
"""Cycles for which a stream is kept at work before a call: some 30 ms, far more than the host needs for it."""


@final
@dataclass(frozen=True)
class Capture(Check):
    """A captured call is replayed with other contents, ids, counts and valid rows, over memory that holds NaN.

    Meant for F97 (routing or counts baked into the graph, buffers made on the first call) and F15 (a workspace that
    the capture zeroed once).
    """

    name: ClassVar[str] = "capture"
    meaning: ClassVar[str] = "a replayed CUDA graph computes what the batch holds now"
    device: ClassVar[str | None] = "cuda"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return _captured(case) or Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, static = subject.prepare(case), subject.feed(case, CALM)
        others = [fed for fed in _other_feeds(subject, case) if fed.batch.rows.shape == static.batch.rows.shape]
        wanted = [subject.rows(case, other, prepared) for other in others]
        with torch.no_grad():
            subject.run(case, static.batch, prepared)  # the first call may build handles and compile
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = subject.backend.run(static.batch, prepared, case.problem)
            for other, rows in zip(others, wanted, strict=True):
                for mine, theirs in zip(batch_tensors(static.batch), batch_tensors(other.batch), strict=True):
                    mine.copy_(theirs)
                output.fill_(math.nan)
                graph.replay()
                torch.cuda.synchronize()
                subject.same(case, output[other.live.to(subject.device)].cpu(), rows, "live rows of a replayed graph")


@final
@dataclass(frozen=True)
class HostReads(Check):
    """No value on the device is read on the host, by torch's synchronisation debug mode. Meant for F98."""

    name: ClassVar[str] = "host_reads"
    meaning: ClassVar[str] = "run never waits for the device"
    device: ClassVar[str | None] = "cuda"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return _captured(case) or Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, fed = subject.prepare(case), subject.feed(case, CALM)
        subject.run(case, fed.batch, prepared)
        with _reads_are_errors(), torch.no_grad():
            try:
                subject.backend.run(fed.batch, prepared, case.problem)
            except RuntimeError as fault:
                if "synchronizing" not in str(fault):
                    raise
                raise Nonconformance("a call on the device", "no read on the host", str(fault)) from fault


@final
@dataclass(frozen=True)
class StreamAndDevice(Check):
    """A call on a stream that is not the default one, and, where there are two devices, on one that is not current.

    The stream is kept at work and only then writes the rows, over NaN: what runs on another stream reads too early.
    Meant for F93 and F99: a launch on the default stream or on the current device, whatever the rows are on.
    """

    name: ClassVar[str] = "stream_and_device"
    meaning: ClassVar[str] = "a call runs on the current stream, and on the device of its rows"
    device: ClassVar[str | None] = "cuda"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not has_plain_sizes(backend, case):
            return "streams do not depend on sizes"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, fed = subject.prepare(case), subject.feed(case, CALM)
        wanted = subject.rows(case, fed, prepared)  # on the default stream; compiles
        rows, side = fed.batch.rows.clone(), torch.cuda.Stream()
        fed.batch.rows.fill_(math.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(BUSY)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            fed.batch.rows.copy_(rows)
            output = subject.run(case, fed.batch, prepared).clone()
        side.synchronize()
        subject.same(case, output[fed.live.to(subject.device)].cpu(), wanted, "live rows of a call on another stream")
        elsewhere = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
        if elsewhere == torch.cuda.current_device():
            return
        there = Subject(subject.backend, subject.machine, subject.oracle, torch.device("cuda", elsewhere))
        got = there.rows(case, there.feed(case, NAN), there.prepare(case))
        there.compare(case, got, subject.oracle.rows(case), "rows on a device that is not the current one")


def _captured(case: Case) -> str | None:
    return None if case.problem.graph_capture else "capture is not asked for"


def _other_feeds(subject: Subject, case: Case) -> Iterator[Fed]:
    """Batches of the same shapes with other contents, other routing and other counts."""
    given = subject.oracle.contents(case)
    for poison in (Poison(math.nan), Poison(1e4), Poison(math.inf)):
        contents = turned(case, given, 1 + int(poison.value == 1e4))
        yield subject.feed(case, poison, contents=contents)


@contextmanager
def _reads_are_errors() -> Generator[None]:
    with catch_warnings():
        simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
