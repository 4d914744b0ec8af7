"""Every claim of the backends that run on CUDA: values, poison, no host read, capture and replay."""

import contextlib
import dataclasses
import itertools
import warnings

import pytest
import torch

from moesaic import (
    BACKENDS,
    BatchedBatch,
    BatchedExperts,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    HopperGrouped,
    Machine,
    PaddedStandard,
    PaddedStandardBatch,
    Standard,
    bind,
    known_machine,
)
from moesaic.tuning import Always, Product
from tests.backends import example, feeding, generated
from tests.tolerance import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MACHINE = Machine.current("cuda") if torch.cuda.is_available() else known_machine("h200")
ALWAYS_PRODUCTS = HopperGrouped(Always(Product()))
"""It takes the kernels for many rows, however few there are."""
SUBJECTS = [
    b for b in (*BACKENDS, ALWAYS_PRODUCTS) if not b.reasons_against(example.problem(dtype=torch.bfloat16), MACHINE)
]
LAYOUTS = [Standard(), PaddedStandard(), GroupedContiguous(8), GroupedContiguous(64), BatchedExperts()]


def name_of(value):
    return f"{value.name}{'-products' if value == ALWAYS_PRODUCTS else ''}" if value in SUBJECTS else str(value)


def subjects_and(**axes):
    """Every subject with every value of the axes, as far as it serves the problem that has them."""
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    cases = [(given, example.problem(**{"dtype": torch.bfloat16, "bias": True, **given})) for given in every]
    return [(b, *given.values()) for b in SUBJECTS for given, case in cases if not b.reasons_against(case, MACHINE)]


CLAIMS = [(b, p) for b in SUBJECTS for p in generated.problems(b)]
every_backend = pytest.mark.parametrize("backend", SUBJECTS, ids=name_of)


@contextlib.contextmanager
def host_reads_are_errors():
    """Raise where the host waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def owed_rows(batch, case):
    """The rows whose results are defined; the others keep whatever their memory held."""
    match batch:
        case GroupedBatch():
            row = torch.arange(batch.rows.shape[0], device="cuda")
            begin = batch.offsets[: batch.counts.shape[0], None]
            return ((row >= begin) & (row < begin + batch.counts[:, None])).any(0)
        case BatchedBatch():
            return torch.arange(batch.rows.shape[1], device="cuda") < batch.counts[:, None]
        case PaddedStandardBatch():
            ids = batch.routing.topk_ids
            return ((ids >= 0) & (ids < case.num_experts)).any(1)
        case _:
            return torch.ones(batch.rows.shape[0], dtype=torch.bool, device="cuda")


def claim_id(value):
    return name_of(value) if value in SUBJECTS else generated.identify(value)


def on_gpu(given):
    biases = {n: None if getattr(given, n) is None else getattr(given, n).cuda() for n in VECTORS}
    return ExpertWeights.plain(given.gate_up.data.cuda(), given.down.data.cuda(), **biases)


VECTORS = ("gate_up_bias", "down_bias", "output_scale")


@pytest.mark.parametrize(("backend", "case"), CLAIMS, ids=claim_id)
def test_claim_equals_the_oracle_and_undefined_rows_change_no_bit(backend, case):
    given = example.weights(case)
    experts = bind(case, on_gpu(given), backends=(backend,))
    outputs = []
    for poison in (float("nan"), 1e4, float("inf")):
        batch, expected, live = feeding.feed(case, given, poison=poison)
        mask = torch.tensor(live, device="cuda")
        with torch.no_grad():
            outputs.append(experts(feeding.moved(batch, "cuda"))[mask])
    assert_close(outputs[0], expected[live], case.dtype)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(("backend", "layout"), subjects_and(layout=LAYOUTS), ids=name_of)
def test_nothing_is_read_on_the_host_and_a_graph_replays_other_contents(backend, layout):
    case = example.problem(layout=layout, dtype=torch.bfloat16, bias=True, graph_capture=True)
    given = example.weights(case)
    experts = bind(case, on_gpu(given), backends=(backend,))
    batch, _, _ = feeding.feed(case, given, poison=float("nan"))
    static = feeding.moved(batch, "cuda")
    with torch.no_grad():
        experts(static)  # the first call may build handles
        with host_reads_are_errors():
            experts(static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = experts(static)
    for change in range(3):
        other = feeding.moved(feeding.feed(case, given, poison=(float("nan"), 1e4, float("inf"))[change])[0], "cuda")
        if layout.has_routing:
            ids = other.routing.topk_ids
            shifted = torch.where((ids >= 0) & (ids < 5), (ids + change) % 5, ids)
            ids.copy_(shifted)
        else:
            other.rows.copy_(other.rows.roll(change, dims=-1))
            other.counts.copy_((other.counts - change).clamp(min=0))
        feeding.copy_into(static, other)
        output.fill_(float("nan"))
        graph.replay()
        with torch.no_grad():
            eager = experts(other)
        owed = owed_rows(other, case)
        assert owed.any()
        assert torch.equal(output[owed], eager[owed])


@every_backend
def test_two_runs_agree_bit_for_bit(backend):
    case = dataclasses.replace(
        example.problem(dtype=torch.bfloat16, bias=True, deterministic=True), hidden_size=1024, intermediate_size=704
    )
    given = on_gpu(example.weights(case))
    experts = bind(case, given, backends=(backend,))
    batch = feeding.moved(feeding.feed(case, example.weights(case), poison=0.0)[0], "cuda")
    with torch.no_grad():
        first = experts(batch)
        for _ in range(20):
            assert torch.equal(experts(batch), first)


@pytest.mark.parametrize(
    ("backend", "layout", "dtype"),
    subjects_and(layout=LAYOUTS, dtype=[torch.float32, torch.bfloat16, torch.float16]),
    ids=name_of,
)
def test_a_call_stays_inside_the_workspace_it_states(backend, layout, dtype):
    case = example.problem(layout=layout, dtype=dtype, bias=True, hidden_size=256, intermediate_size=192)
    given = example.weights(case)
    experts = bind(case, on_gpu(given), backends=(backend,))
    batch = feeding.moved(feeding.feed(case, given, poison=0.0)[0], "cuda")
    with torch.no_grad():
        experts(batch)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        output = experts(batch)
        used = torch.cuda.max_memory_allocated() - before
    del output
    num_rows = batch.rows.shape[:-1].numel()
    assert used <= experts.workspace(num_rows) + 64 * 512  # the allocator rounds each block up to 512 bytes
