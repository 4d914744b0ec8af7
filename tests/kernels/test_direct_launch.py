"""A kernel launched as compiled before gets the arguments of this call, and what needs another kernel gets one."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from moesaic.kernels import direct_launch
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2


@triton.jit
def _scale(values, out, count, factors, A: tl.constexpr, BLOCK: tl.constexpr = 32):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(values + at, mask=at < count, other=0.0) * factors[0] + A, mask=at < count)


class Compiled:
    """What a launch gives back: the arguments of launches that go past Triton are noted."""

    module = object()

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *args: self.launches.append((grid, args))


@pytest.fixture
def launches(monkeypatch):
    """Launches that go through Triton, each with what it compiled."""
    found = []

    def run(self, *args, grid, warmup, **kwargs):
        found.append((args, kwargs, Compiled()))
        return found[-1][-1]

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(direct_launch, "CompiledKernel", Compiled)
    return found


def test_a_second_launch_of_a_kind_goes_past_triton_with_its_own_arguments(launches):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)
    kernel[(2,)](x, y, 37, (2.0,), A=3, num_warps=2)
    kernel[(5, 4)](y, x, 39, (8.0,), A=3, num_warps=2)
    assert len(launches) == 1
    assert launches[0][2].launches == [((5, 4, 1), (y, x, 39, (8.0,), 3, 32))]


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.ones(66)[1:65]},  # not aligned
        {"x": torch.ones(64, dtype=torch.float64)},
        {"count": 48},  # a multiple of 16
        {"count": 1},
        {"count": 2**31},
        {"count": 2**63},
        {"factors": (None,)},
        {"factors": (torch.ones(4),)},
        {"factors": (2.0, 1.0)},
        {"A": 4},
        {"num_warps": 4},
    ],
    ids=str,
)
def test_what_needs_another_kernel_goes_through_triton(launches, change):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)

    def launch(x=x, count=37, factors=(2.0,), A=3, num_warps=2):  # noqa: N803
        kernel[(2,)](x, y, count, factors, A=A, num_warps=num_warps)

    launch()
    launch(**change)
    assert len(launches) == 2
    launch(**change)
    launch()
    assert len(launches) == 2
    assert [len(compiled.launches) for *_, compiled in launches] == [1, 1]


def test_an_argument_given_by_name_is_not_kept(launches):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)
    for count in (37, 39):
        kernel[(2,)](x, y, count=count, factors=(2.0,), A=3)
    assert len(launches) == 2


def test_what_has_no_kind_goes_through_triton(launches):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)
    for _ in range(2):
        kernel[(2,)](triton.reinterpret(x, tl.float32), y, 37, (2.0,), A=3)
    assert len(launches) == 2


@pytest.mark.gpu
def test_on_a_gpu_every_kind_of_argument_gives_its_own_answer():
    kernel = DirectLaunch(_scale)
    values = torch.randint(-9, 9, (200,), device="cuda").float()  # a product and a sum of these are exact
    for count in (1, 16, 37, 48, 37, 1):
        for start in (0, 1, 4):
            for factor in (2.0, 1.0, -3.0):
                out = torch.full((128,), torch.nan, device="cuda")
                given = values[start:]
                kernel[(ceil_div(count, 32),)](given, out, count, (factor,), A=3)
                assert torch.equal(out[:count], given[:count] * factor + 3)
                assert out[count:].isnan().all()


@pytest.mark.gpu
def test_on_a_gpu_the_current_stream_is_used():
    kernel, out = DirectLaunch(_scale), torch.zeros(32, device="cuda")
    x, graph = torch.ones(32, device="cuda"), torch.cuda.CUDAGraph()
    kernel[(1,)](x, out, 32, (2.0,), A=0)
    with torch.cuda.graph(graph):
        kernel[(1,)](x, out, 32, (2.0,), A=0)
    x.fill_(5)
    graph.replay()
    assert out.eq(10).all()


def test_sizes_of_grids_and_blocks():
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [next_power_of_2(n) for n in (1, 2, 3, 4, 5, 896)] == [1, 2, 4, 4, 8, 1024]
