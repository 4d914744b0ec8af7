"""Subject: a backend under test on one device, with the few moves that checks are made of."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from moesaic.backends.base import Backend
from moesaic.batches import Batch
from moesaic.conformance.case import Case
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import CALM, NAN, Fed, Place, Poison, feed
from moesaic.conformance.figures import apart, excess, figure
from moesaic.conformance.noise import deviation
from moesaic.conformance.oracle import Oracle, exact, placed
from moesaic.conformance.slope import row_slopes
from moesaic.conformance.tolerance import tolerance
from moesaic.errors import Nonconformance
from moesaic.machine import Machine
from moesaic.weights import ExpertWeights


@final
class Subject:
    """What a check is given beside its case.

    The backend is called directly, not through `bind`, so that the layer's own checks hide nothing; every call gets
    fresh copies of weights and batch, so that a backend which changes them spoils no other check.
    """

    def __init__(
        self, backend: Backend[Any], machine: Machine, oracle: Oracle, device: torch.device | None = None
    ) -> None:
        self.backend = backend
        self.machine = machine
        self.oracle = oracle
        self.device = torch.device(machine.device) if device is None else device

    def place(self, values: Tensor) -> Tensor:
        """A copy of `values` on the device of the subject."""
        return values.to(self.device, copy=True)

    def weights(self, case: Case) -> ExpertWeights:
        """A copy of the weights of `case` on the device."""
        return placed(self.oracle.weights(case), self.place)

    def prepare(self, case: Case, weights: ExpertWeights | None = None) -> Any:
        """What the backend prepares from `weights`, by default a copy of those of the case."""
        return self.backend.prepare(self.weights(case) if weights is None else weights, case.problem)

    def feed(
        self, case: Case, poison: Poison = NAN, *, contents: Contents | None = None, place: Place | None = None
    ) -> Fed:
        """The batch of `case` on the device."""
        given = self.oracle.contents(case) if contents is None else contents
        return feed(case, given, poison, self.place if place is None else place)

    def run(self, case: Case, batch: Batch, prepared: Any) -> Tensor:
        """What the backend returns, without gradients; raises Nonconformance on another shape, dtype or device."""
        with torch.no_grad():
            return self.checked(case, batch, self.backend.run(batch, prepared, case.problem))

    def rows(self, case: Case, fed: Fed, prepared: Any) -> Tensor:
        """The live rows `[R, H]` of what the backend returns, on the CPU."""
        return self.run(case, fed.batch, prepared)[fed.live.to(self.device)].cpu()

    def output(self, case: Case, poison: Poison = CALM) -> Tensor:
        """The live rows of `case` from freshly prepared weights, on the CPU."""
        return self.rows(case, self.feed(case, poison), self.prepare(case))

    def checked(self, case: Case, batch: Batch, result: Any) -> Tensor:
        """`result`, if it has the form that the contract states."""
        wanted = f"{case.problem.dtype} of shape {tuple(batch.rows.shape)} on {batch.rows.device}"
        if not isinstance(result, Tensor):
            raise Nonconformance("the result of run", wanted, f"a {result.__class__.__name__}")
        if (result.shape, result.dtype, result.device) != (batch.rows.shape, case.problem.dtype, batch.rows.device):
            got = f"{result.dtype} of shape {tuple(result.shape)} on {result.device}"
            raise Nonconformance("the result of run", wanted, got)
        return result

    def compare(self, case: Case, got: Tensor, wanted: Tensor, what: str) -> None:
        """Raise Nonconformance unless `got` equals the exact rows `wanted` within the tolerance of the case."""
        problem, (answered, distinct) = case.problem, num_distinct(wanted.detach())
        allowed = tolerance(
            problem.dtype,
            problem.scheme,
            max(problem.hidden_size, problem.intermediate_size),
            len(got) - answered + distinct,
        )
        found = deviation(got.detach().cpu(), wanted.detach())
        if not found.exceeds(allowed):
            row_slopes(problem, got.cpu(), wanted, copies=answered / max(1, distinct)).judge(what)
            return
        bad = int((~got.isfinite()).any(-1).sum())
        limits, figures = excess(found, allowed)
        if bad:
            raise Nonconformance(what, "finite rows", f"{bad} of {len(got)} rows that are not")
        raise Nonconformance(what, limits, f"{figures}; {worst_row(got, wanted)}")

    def exact(self, case: Case, contents: Contents, weights: ExpertWeights) -> Tensor:
        """The exact live rows for contents and weights (on the CPU) that are not those of the case."""
        return exact(case, contents, weights)

    def same(self, case: Case, got: Tensor, wanted: Tensor, what: str) -> None:
        """Raise Nonconformance unless two results of the backend agree: bit for bit where the case asks for it.

        Where it does not, two runs may differ by rounding, so they only need to be within the tolerance.
        """
        if not case.problem.deterministic:
            self.compare(case, got, wanted.double(), what)
        elif not torch.equal(got.nan_to_num(nan=0.0), wanted.nan_to_num(nan=0.0)) or not torch.equal(
            got.isnan(), wanted.isnan()
        ):
            rows = sorted({int(r) for r in torch.where((got != wanted).any(-1))[0].tolist()})
            largest = float((got.double() - wanted.double()).abs().nan_to_num(nan=float("inf")).max())
            raise Nonconformance(
                what, "equal bits", f"{len(rows)} rows that differ by up to {figure(largest)}: {_few(rows)}"
            )


def num_distinct(wanted: Tensor) -> tuple[int, int]:
    """How many rows of `wanted [R, H]` are not zero, and how many of these are no copies of others.

    A token that comes to one expert from all its slots is one row, whose rounding no number of copies averages out.
    The oracle's copies may differ in their last bits, by where they stand in a product, so float32 is compared.
    """
    answered = wanted[(wanted != 0).any(-1)]
    return len(answered), len(torch.unique(answered[:, :4].float(), dim=0))


def worst_row(got: Tensor, wanted: Tensor) -> str:
    """Where the error is largest, in words."""
    error = (got.detach().cpu().double() - wanted.detach()).abs()
    row, column = divmod(int(error.argmax()), error.shape[1])
    return f"row {row} column {column} is {apart(float(got[row, column]), float(wanted[row, column]))}"


def _few(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
