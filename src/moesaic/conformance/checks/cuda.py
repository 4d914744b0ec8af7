"""Promises that only a CUDA device can break: graphs, reads on the host, addresses beyond 32 bits."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.cases import base_case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.ownership import batch_tensors
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import CALM, Fed, Poison
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance
from moesaic.quant import Plain

BEYOND = 2**31
"""Elements from which a 32-bit offset is wrong."""


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
class LargeAddresses(Check):
    """Rows times columns beyond 2**31: the first, the middle and the last rows are those of the same rows alone.

    Meant for F100 and F101: 32-bit offsets, a grid dimension above 65,535. Takes about 30 GiB.
    """

    name: ClassVar[str] = "large_addresses"
    meaning: ClassVar[str] = "offsets beyond 2**31 elements are right"
    device: ClassVar[str | None] = "cuda"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        coarse = max(backend.capabilities.dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        if case != base_case(backend.capabilities, coarse) or not case.problem.layout.has_routing:
            return "one case with routing is enough"
        return None if isinstance(case.problem.scheme.weights, Plain) else "its layer is not quantized"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        wide = case.changed(hidden_size=2048, intermediate_size=64, top_k=1)
        few = 1024
        tokens = BEYOND // wide.problem.hidden_size + few
        small = replace(wide, num_tokens=few)
        prepared, given = subject.prepare(small), subject.oracle.contents(small)
        wanted = subject.rows(small, subject.feed(small, CALM), prepared)
        repeats = -(-tokens // few)
        tiled = Contents(*(t.repeat(repeats, 1) for t in (given.hidden_states, given.ids, given.weights)))
        many = replace(wide, num_tokens=repeats * few)
        fed = subject.feed(many, CALM, contents=tiled)
        got = subject.run(many, fed.batch, prepared)
        live = fed.live[:few]
        for block in (0, repeats // 2, repeats - 1):
            rows = got[block * few : (block + 1) * few].cpu()[live]
            subject.compare(small, rows, wanted.double(), f"rows from {block * few} on")


def _captured(case: Case) -> str | None:
    return None if case.problem.graph_capture else "capture is not asked for"


def _other_feeds(subject: Subject, case: Case) -> Iterator[Fed]:
    """Batches of the same shapes with other contents, other routing and other counts."""
    given = subject.oracle.contents(case)
    for poison in (Poison(math.nan), Poison(1e4), Poison(math.inf)):
        shift = 1 + int(poison.value == 1e4)
        ids = _turned(given.ids, shift, case.problem.num_experts)
        contents = replace(given, hidden_states=given.hidden_states.roll(shift, 1), ids=ids)
        yield subject.feed(case, poison, contents=contents)


def _turned(ids: Tensor, shift: int, num_experts: int) -> Tensor:
    """Active ids moved on by `shift` experts (counts move with them, and the sizes of a batch stay) and tokens too."""
    return torch.where(ids >= 0, (ids + shift) % num_experts, ids).roll(shift, 0)


@contextmanager
def _reads_are_errors() -> Generator[None]:
    with catch_warnings():
        simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
