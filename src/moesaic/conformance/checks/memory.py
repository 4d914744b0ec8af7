"""How much memory a call takes, and that it writes to none but its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.fresh import ALLOCATIONS
from moesaic.conformance.feeding import CALM, Fed
from moesaic.conformance.live_allocations import largest_allocations
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance
from moesaic.layouts import GroupedContiguous

GUARD = 512
"""Bytes before and after a guarded tensor; a multiple of every alignment that kernels ask for."""

SLACK = 16
"""How many times the bytes in use a statement may be; the package's own backends state up to 12 times."""

FULL = 64
"""Tokens from which a statement is compared with what is in use: for two tokens, torch's packing of weights is most."""

MANY = 1024
"""How many times FULL a statement is asked of without a run: one that grows as the square of the rows shows."""

SMALL = 1 << 16
"""Bytes that no statement needs to justify: torch's own rounding, a table of experts."""


@final
@dataclass(frozen=True)
class Workspace(Check):
    """The peak of a call stays inside `workspace`, which is not absurd, grows with rows, and is pure.

    And a second call of one shape leaves nothing behind. Meant for F102, F103 and F106: a size that another routing
    exceeds, ranks or experts counted twice, a cache that grows with every call.
    """

    name: ClassVar[str] = "workspace"
    meaning: ClassVar[str] = "a call takes at most the memory stated, and not far less"
    with_many_experts: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, fed = subject.prepare(case), subject.feed(case, CALM)
        num_rows = fed.live.numel()
        stated = subject.backend.workspace(case.problem, num_rows)
        if isinstance(stated, bool) or not isinstance(stated, int) or stated < 0:
            raise Nonconformance(f"workspace(problem, {num_rows})", "a whole number of bytes", repr(stated))
        if subject.backend.workspace(case.problem, num_rows) != stated:
            raise Nonconformance(f"workspace(problem, {num_rows})", "the same number each time", "another")
        _grows(subject, case, num_rows, stated)
        most, justified = 0, 0.0
        # Rows that lie in expert order may all be of one expert; slabs would be gaps but for one.
        layout, named_twice = case.problem.layout, case.problem.duplicate_ids
        hot = isinstance(layout, GroupedContiguous) or (named_twice and layout.has_routing)
        for each in (fed, _full(subject, case, None if hot else 0), _full(subject, case, 1)):
            batch = each.batch
            subject.run(case, batch, prepared)  # a first call may set up what later calls keep
            used, left = peak_bytes(subject.device, partial(subject.run, case, batch, prepared))
            if left > 0:
                raise Nonconformance(
                    "memory that a call leaves behind when its output is gone", "none", f"{left} bytes"
                )
            rows = batch.rows.shape[:-1].numel()
            stated = subject.backend.workspace(case.problem, rows)
            rounding = 64 * 512 if subject.device.type == "cuda" else 0  # CUDA's allocator rounds each block up to 512
            if used > stated + rounding:
                largest = largest_allocations(partial(subject.run, case, batch, prepared))
                raise Nonconformance(
                    f"the peak of a call with {rows} rows",
                    f"at most the bytes that are stated: workspace() states {stated}",
                    f"{used}; the largest at once: {largest}",
                )
            # A statement is for any counts, so where most rows are gaps only the share of the others is compared.
            most, justified = max(most, used), stated * float(each.live.float().mean())
        if justified > SLACK * most + SMALL:
            raise Nonconformance(
                "what workspace() states for the rows that are computed",
                f"at most {SLACK} times the {most} bytes in use",
                f"{justified:.0f}",
            )


def _grows(subject: Subject, case: Case, num_rows: int, stated: int) -> None:
    """More rows state no less, and very many not out of proportion.

    In between it may leap: a kernel for many rows pads them, or reads weights back first. That those bytes are in use
    is measured where the kit's rows reach.
    """
    doubled = subject.backend.workspace(case.problem, 2 * num_rows)
    if doubled < stated:
        question = f"workspace(problem, {2 * num_rows})"
        raise Nonconformance(question, f"at least the {stated} that it states for {num_rows}", f"{doubled}")
    few, many = (subject.backend.workspace(case.problem, n) for n in (FULL, MANY * FULL))
    if many > SLACK * MANY * few:
        question = f"workspace(problem, {MANY * FULL})"
        needed = f"at most {SLACK} times what {MANY} calls of {FULL} rows state, {few} bytes each"
        raise Nonconformance(question, needed, f"{many}")


def _full(subject: Subject, case: Case, spread: int | None) -> Fed:
    """At least FULL tokens, no padding, every slot active: what the statement is made for.

    `spread`: 1 for tokens that name all experts in turn, 0 for tokens that all name the first K, None for one expert.
    """
    case = replace(case, padding=0.0, num_tokens=max(FULL, case.num_tokens))
    given = subject.oracle.contents(case)
    tokens, slots = given.ids.shape
    ids = torch.zeros(tokens, slots)
    if spread is not None:
        ids = (spread * torch.arange(tokens).unsqueeze(1) + torch.arange(slots)) % case.problem.num_experts
    return subject.feed(case, CALM, contents=replace(given, ids=ids.int()))


@final
@dataclass(frozen=True)
class Canary(Check):
    """Bytes before and after every input, every weight and all that the call allocates in Python stay as they are.

    They are 0xFF, which reads as NaN and as the id -1, so that reading there shows too. Meant for F20, F21, F102, F104:
    writes past a buffer. Not covered: memory that a kernel allocates itself.
    """

    name: ClassVar[str] = "canary"
    meaning: ClassVar[str] = "nothing is read or written outside of inputs, weights and the call's own memory"
    with_whole_tiles: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        calm = subject.output(case, CALM)
        guards: list[Tensor] = []

        def guarded(values: Tensor) -> Tensor:
            inside = _guarded(subject.place(values), guards)
            inside.copy_(values)
            return inside

        prepared = subject.prepare(case, placed(subject.oracle.weights(case), guarded))
        fed = subject.feed(case, CALM, place=guarded)
        with GuardedAllocations(guards):
            got = subject.rows(case, fed, prepared)
        for guard in guards:
            edges = torch.cat([guard[:GUARD], guard[-GUARD:]])
            if bool((edges != 0xFF).any()):
                raise Nonconformance(
                    "memory beside a tensor", "its bytes unchanged", f"{int((edges != 255).sum())} others"
                )
        subject.same(case, got, calm, "live rows of tensors that stand between guard bytes")


@final
class GuardedAllocations(TorchDispatchMode):
    """Puts what Python code allocates between guard bytes, which are appended to `guards`."""

    def __init__(self, guards: list[Tensor]) -> None:
        super().__init__()
        self.guards = guards

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS and isinstance(result, Tensor) and result.is_contiguous() and result.numel():
            return _guarded(result, self.guards)
        return result


def peak_bytes(device: torch.device, call: Callable[[], object]) -> tuple[int, int]:
    """The most bytes alive at once during `call`, beyond those before it, as torch's own allocator reports them.

    Also how many are still alive when its result is gone.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = call()
        peak = torch.cuda.max_memory_allocated(device) - before
        del kept
        return peak, torch.cuda.memory_allocated(device) - before
    with catch_warnings():
        filterwarnings("ignore", "Warning: Profiler clears events")  # torch 2.11 says so of every use
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            kept = call()
            del kept  # inside, so that its end is recorded
    results: Any = profiled.profiler
    alive = peak = 0
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak, alive


def _guarded(like: Tensor, guards: list[Tensor]) -> Tensor:
    """An uninitialised (0xFF) tensor of the shape, dtype and device of `like`, between guard bytes."""
    size = like.numel() * like.element_size()
    whole = torch.full((size + 2 * GUARD,), 0xFF, dtype=torch.uint8, device=like.device)
    guards.append(whole)
    return whole[GUARD : GUARD + size].view(like.dtype).view(like.shape)
