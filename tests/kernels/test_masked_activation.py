"""The count-aware activation in Triton: in the interpreter on a CPU, refusals, and on CUDA against torch."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from moesaic import Activation, SwiGLU
from moesaic.activations import masked
from moesaic.errors import ActivationError, BatchError
from tests.activations.masked_cases import EVERY, POISONS, SENTINEL, check_specials, specials, strided

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What the program `interpreted.py` saved."""
    path = tmp_path_factory.mktemp("kernels") / "outs.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.kernels.interpreted", str(path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(path)


@pytest.mark.parametrize("name", EVERY)
def test_live_rows_are_the_oracles_and_undefined_rows_change_no_bit(name, interpreted):
    outs = [interpreted["outs"][name, i] for i in range(len(POISONS))]
    for out in outs:
        EVERY[name].check(out)
        assert torch.equal(out, outs[0])


def test_strides_are_followed_and_memory_between_them_is_left_alone(interpreted):
    got, wanted, target = interpreted["strided"]
    assert torch.equal(got, wanted)
    assert (target == SENTINEL).all()


def test_nan_and_infinity_are_those_of_the_formula(interpreted):
    check_specials(interpreted["specials"])


@pytest.fixture
def kernel():
    """The module under test, imported where triton is installed."""
    from moesaic.kernels import masked_activation  # noqa: PLC0415

    return masked_activation


COUNT = torch.tensor(2, dtype=torch.int32)


@dataclasses.dataclass(frozen=True)
class Mine(Activation):
    """An activation of somebody who wrote no expression for it."""

    gated: ClassVar[bool] = True

    def formula(self, rows, at):
        return rows[..., ::2]


@dataclasses.dataclass(frozen=True)
class Derived(SwiGLU):
    """It computes something else than SwiGLU, so SwiGLU's expression is not its."""


@pytest.mark.parametrize("activation", [Mine(), Derived()], ids=repr)
def test_an_activation_without_an_expression_is_refused(kernel, activation):
    with pytest.raises(ActivationError, match=r"no expression of .*only of GELU, GeGLU"):
        kernel.apply(activation, torch.ones(4, 6), COUNT)


def test_a_cpu_float64_and_too_many_experts_are_refused(kernel):
    with pytest.raises(BatchError, match="needs CUDA"):
        kernel.apply(SwiGLU(), torch.ones(4, 6), COUNT)
    with pytest.raises(BatchError, match="float64"):
        kernel.apply(SwiGLU(), torch.ones(4, 6, dtype=torch.float64), COUNT)
    with pytest.raises(BatchError, match="at most 4096 experts"):
        kernel.apply(SwiGLU(), torch.ones(4097, 1, 2), torch.ones(4097, dtype=torch.int32))


def test_bad_arguments_are_refused_as_torchs_are(kernel):
    with pytest.raises(BatchError, match="shares memory"):
        kernel.apply(SwiGLU(), (memory := torch.ones(4, 6)), COUNT, out=memory[:, :3])


@pytest.mark.gpu
@needs_cuda
class TestOnCuda:
    """Every case again where the kernel is compiled."""

    @pytest.mark.parametrize("name", EVERY)
    def test_the_kernel_and_torch_agree_with_the_oracle(self, kernel, name):
        given = EVERY[name]
        for apply in (kernel.apply, masked.apply):
            outs = [self.on_cuda(given).run(apply, poison).cpu() for poison in POISONS]
            for out in outs:
                given.check(out)
                assert torch.equal(out, outs[0])

    def test_nan_and_infinity_are_those_of_the_formula(self, kernel):
        check_specials(specials(kernel.apply, "cuda"))

    def test_strides_are_followed(self, kernel):
        got, wanted, target = strided(kernel.apply, "cuda")
        assert torch.equal(got, wanted)
        assert (target == SENTINEL).all()

    def test_a_graph_replays_another_count(self, kernel):
        rows, count = torch.randn(512, 130, device="cuda"), torch.tensor(3, dtype=torch.int32, device="cuda")
        out = torch.full((512, 65), SENTINEL, device="cuda")
        kernel.apply(SwiGLU(), rows, count, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.apply(SwiGLU(), rows, count, out=out)
        for live in (0, 511, 77):
            count.fill_(live)
            out.fill_(SENTINEL)
            graph.replay()
            torch.testing.assert_close(out[:live], SwiGLU()(rows[:live]), rtol=1e-5, atol=1e-5)
            assert (out[live:] == SENTINEL).all()

    def test_rows_past_2_to_the_31_elements(self, kernel):
        rows = torch.zeros(2**20 + 1, 2 * 2048, dtype=torch.bfloat16, device="cuda")
        rows[-1] = 1.0
        out = torch.zeros(2**20 + 1, 2048, dtype=torch.bfloat16, device="cuda")
        kernel.apply(SwiGLU(), rows, torch.tensor(2**20 + 1, dtype=torch.int32, device="cuda"), out=out)
        assert out[-1].eq(SwiGLU()(rows[-1].float()).bfloat16()).all()
        assert not out[:-1].any()

    def on_cuda(self, given):
        """The same case on the GPU."""
        ids = None if given.expert_ids is None else given.expert_ids.cuda()
        moved = {"rows": lambda p: given.rows(p).cuda(), "out": lambda: given.out().cuda(), "expert_ids": ids}
        return dataclasses.replace(given, counts=given.counts.cuda(), **moved)
