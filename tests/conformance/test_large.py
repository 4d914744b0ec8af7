"""Checks of large offsets: what they run, scaled down to a CPU, and what they would take on a device."""

import math

import pytest
import torch

from moesaic import BACKENDS, BatchedExperts, Cpu, CpuQuantized, GroupedContiguous, Machine, PaddedStandard, Standard
from moesaic.conformance import Subject, base_case, cases_of
from moesaic.conformance.checks.large import MOST_BYTES, LargeAddresses, LargeInnerRows, LargeTiles, LargeWeights
from moesaic.conformance.feeding import CALM
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.tiled import tiled

KINDS = (LargeAddresses, LargeInnerRows, LargeWeights)
CUDA = [b for b in BACKENDS if any(target.device == "cuda" for target in b.capabilities.targets)]


def tried(check, backend):
    return [case for case in cases_of(backend, quick=True) if check.applies(backend, case) is None]


@pytest.mark.parametrize("backend", [Cpu(), CpuQuantized()], ids=lambda backend: backend.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_case_for_each_kind_of_layout_passes_where_nothing_is_wrong(kind, backend):
    check, subject = kind(beyond=2**20), Subject(backend, Machine.current("cpu"), Oracle())
    cases = tried(check, backend)
    assert [case.fed for case in cases] == [Standard(), GroupedContiguous(1), BatchedExperts()]
    for case in cases:
        check.run(subject, case)


@pytest.mark.parametrize("backend", CUDA, ids=lambda backend: backend.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_offsets_exceed_32_bits_in_memory_that_a_device_has(kind, backend):
    check, can = kind(), backend.capabilities
    for case in tried(check, backend):
        if isinstance(check, LargeTiles):
            small = check.small(can, case)
            columns = check.columns(backend, small)
            rows = small.num_tokens * small.problem.top_k * check.times(small, columns)
            assert rows * columns > 2**31
            assert check.bytes_for(backend, small, columns) <= MOST_BYTES
        else:
            many = check.many(can, case).problem
            stored = many.scheme.weights.storage((many.hidden_size, many.intermediate_size), many.dtype)["data"]
            assert (many.num_experts - 1) * math.prod(stored.shape) > 2**31
            assert 2 * many.weight_bytes <= MOST_BYTES


@pytest.mark.parametrize("layout", [Standard(), PaddedStandard(), GroupedContiguous(8), BatchedExperts()], ids=str)
def test_a_tiled_batch_holds_the_small_one_many_times(layout):
    case = base_case(Cpu.capabilities).in_layout(layout)
    fed = Subject(Cpu(), Machine.current("cpu"), Oracle()).feed(case, CALM)
    many = tiled(fed, 5)
    rows = many.batch.rows.flatten(0, -2)
    places = torch.cat([many.places(repetition) for repetition in range(5)])
    assert len(places.unique()) == 5 * int(fed.live.sum())
    assert torch.equal(rows[places], fed.batch.rows[fed.live].repeat(5, 1))
    if not layout.has_routing:
        assert torch.equal(many.batch.counts, 5 * fed.batch.counts)
        starts = many.batch.offsets if layout == GroupedContiguous(8) else torch.arange(5) * many.batch.rows.shape[1]
        owned = torch.cat(
            [torch.arange(s, s + c) for s, c in zip(starts.tolist(), many.batch.counts.tolist(), strict=True)]
        )
        assert torch.equal(owned, places.sort().values)
