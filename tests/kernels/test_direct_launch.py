"""A kernel launched as compiled before gets the arguments of this call, and what needs another kernel gets one."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from moesaic.kernels import direct_launch
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2


@triton.jit
def _scale(values, out, count, factors, A: tl.constexpr, BLOCK: tl.constexpr = 32):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(values + at, mask=at < count, other=0.0) * factors[0] + A, mask=at < count)


class Compiled:
    """What a launch gives back: launches that go past Triton are noted, those that go through its hooks apart."""

    module = object()
    function = "function"
    packed_metadata = "metadata"

    def __init__(self):
        self.launches = []
        self.watched = []

    def run(self, *given):
        assert given[4:9] == ("function", "metadata", None, None, None)
        self.launches.append((given[:3], given[3], given[9:]))

    def __getitem__(self, grid):
        return lambda *args: self.watched.append((grid, args))


class Device:
    """A current device and stream that a test may change."""

    current = 0

    def get_current_device(self):
        return self.current

    def get_current_stream(self, device):
        return 70 + device


@pytest.fixture
def device(monkeypatch):
    found = Device()
    monkeypatch.setattr(direct_launch, "driver", SimpleNamespace(active=found))
    return found


@pytest.fixture
def launches(monkeypatch, device):
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
    kernel[(5, 4, 3)](y, x, 39, (8.0,), A=3, num_warps=2)
    assert len(launches) == 1
    given = (y, x, 39, (8.0,), 3, 32)
    assert launches[0][2].launches == [((5, 4, 1), 70, given), ((5, 4, 3), 70, given)]


def test_another_device_gets_a_kernel_and_a_stream_of_its_own(launches, device):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)
    for device.current in (0, 1, 0, 1):
        kernel[(2,)](x, y, 37, (2.0,), A=3)
    assert [[stream for _, stream, _ in compiled.launches] for *_, compiled in launches] == [[70], [71]]


@pytest.mark.parametrize("when", ["launch_enter_hook", "launch_exit_hook"])
def test_hooks_around_launches_are_called_while_they_are_there(launches, monkeypatch, when):
    kernel, (x, y) = DirectLaunch(_scale), torch.ones(2, 64)
    kernel[(2,)](x, y, 37, (2.0,), A=3)
    compiled = launches[0][2]
    chain = knobs.HookChain()
    monkeypatch.setattr(knobs.runtime, when, chain)
    chain.add(print)
    kernel[(2,)](x, y, 37, (2.0,), A=3)
    assert (len(compiled.launches), len(compiled.watched)) == (0, 1)
    chain.remove(print)
    kernel[(2,)](x, y, 37, (2.0,), A=3)
    assert (len(compiled.launches), len(compiled.watched)) == (1, 1)
    for hook, past in ((print, 1), (None, 2)):
        monkeypatch.setattr(knobs.runtime, when, hook)
        kernel[(2,)](x, y, 37, (2.0,), A=3)
        assert len(compiled.launches) == past


def _of_every_kind():
    """Arguments of which Triton compiles some alike."""
    halves, bytes_ = torch.zeros(64, 128, dtype=torch.bfloat16), torch.zeros(64, 128, dtype=torch.uint8)
    swizzled = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    plain = gl.NVMMASharedLayout(0, 16, 2)
    tensors = [halves, halves.view(-1)[1:], halves.view(-1)[8:], halves.float(), torch.nn.Parameter(halves), bytes_]
    descriptors = [
        TensorDescriptor.from_tensor(halves, [64, 64]),
        TensorDescriptor.from_tensor(halves[:, :64], [64, 64]),
        TensorDescriptor.from_tensor(halves, [64, 32]),
        TensorDescriptor.from_tensor(halves.view(-1), [64]),
        TensorDescriptor.from_tensor(bytes_, [64, 64]),
        *(GluonDescriptor.from_tensor(halves, [64, 64], layout) for layout in (swizzled, plain)),
        GluonDescriptor.from_tensor(halves, [32, 64], swizzled),
        GluonDescriptor.from_tensor(halves.half(), [64, 64], swizzled),
    ]
    numbers = [0, 1, 2, 16, 17, -16, 2**31 - 1, 2**31, 2**31 + 1, 2**63, 2**63 + 1, 1.0, 2.5, None]
    alone = [*tensors, *descriptors, *numbers]
    return [*((a,) for a in alone), *(((a,),) for a in alone), (1, 2), ((1, 2),), (halves, 1), (1, halves), ()]


@pytest.mark.parametrize("specialize", [True, False])
def test_kinds_differ_wherever_triton_compiles_another_kernel(specialize):
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    found = {}
    for arguments in _of_every_kind():
        compiled = [native_specialize_impl(backend, a, False, specialize, specialize) for a in arguments]
        found.setdefault((*direct_launch.kinds(arguments),), []).append(str(compiled))
    assert len(found) > 40
    for alike in found.values():
        assert len({*alike}) == 1, alike


def test_an_address_that_is_not_aligned_is_told_apart_among_others():
    x = torch.zeros(64)
    whole, moved = x[4:], x[1:]
    kinds = [(*direct_launch.kinds(a),) for a in ((whole, moved), (moved, whole), (moved, moved), (whole, whole))]
    assert len({*kinds}) == 4


@pytest.mark.parametrize("value", [True, "a", [1], 1j, torch.float32])
def test_what_may_be_anything_has_no_kind(value):
    with pytest.raises(TypeError, match="has no kind"):
        direct_launch.kinds((value,))


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
def test_on_a_gpu_hooks_are_told_of_each_launch():
    kernel, (x, out) = DirectLaunch(_scale), torch.ones(2, 64, device="cuda")
    told = []

    def hook(metadata):
        told.append(metadata.get()["name"])

    for _ in range(2):
        kernel[(2,)](x, out, 37, (2.0,), A=3)
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        kernel[(2,)](x, out, 37, (4.0,), A=3)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert told == ["_scale"]
    assert out[0] == 7


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
