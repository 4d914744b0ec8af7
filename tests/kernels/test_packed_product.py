"""The kernel for few rows on the CPU: both widths of packed blocks, every count of rows, against float64."""

import subprocess
import sys

import pytest
import torch

from moesaic import Machine
from moesaic.kernels.packed_product import packed_product

needs_avx512_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in Machine.current("cpu").features, reason="this processor has no AVX512-BF16"
)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def packed(weight, block_columns, padded_depth):
    """[E, N, K] as [E, N / block, K / 2, block, 2], zero where it is padded."""
    experts, columns, depth = weight.shape
    blocks = -(-columns // block_columns)
    whole = torch.zeros(experts, blocks * block_columns, padded_depth, dtype=weight.dtype)
    whole[:, :columns, :depth] = weight
    return whole.view(experts, blocks, block_columns, padded_depth // 2, 2).transpose(2, 3).contiguous()


@needs_avx512_bf16
@pytest.mark.parametrize("block_columns", [32, 64])
def test_every_count_of_rows(block_columns):
    g = torch.Generator().manual_seed(0)
    experts, columns, depth, padded = 3, 200, 33, 64
    weight = torch.randn(experts, columns, depth, generator=g).bfloat16()
    blocks = packed(weight, block_columns, padded)
    biases = torch.randn(experts, blocks.shape[1] * block_columns, generator=g)
    addresses = torch.tensor([blocks[e].data_ptr() for e in range(experts)])
    for count in (*range(1, 16), 31):
        x = torch.zeros(count + 4, padded + 32, dtype=torch.bfloat16)[:, :padded]
        x[:, :depth] = torch.randn(count + 4, depth, generator=g)
        out = torch.full((count + 4, biases.shape[1]), torch.nan)
        packed_product(addresses, biases, [(2, 1, count), (0, count + 1, 2)], x, out, block_columns)
        for expert, start, stop in ((2, 1, count + 1), (0, count + 1, count + 3)):
            wanted = x[start:stop, :depth].double() @ weight[expert].double().T + biases[expert, :columns]
            torch.testing.assert_close(out[start:stop, :columns].double(), wanted, rtol=1e-5, atol=2e-5)
        assert out[[0, -1]].isnan().all(), "rows of no group were written"


@needs_avx512_bf16
def test_oneDNN_packs_as_the_kernel_reads():  # noqa: N802
    """If this fails, a new torch packs otherwise: `CpuJit` is then as slow as `Cpu`."""
    from moesaic.backends.cpu_packed import packing_of  # noqa: PLC0415
    from moesaic.backends.cpu_projection import Projection  # noqa: PLC0415

    for shape in ((1024, 1024), (1024, 512), (72, 40), (65, 33), (5, 3), (1856, 704), (2880, 2880)):
        for weight in (torch.randn(shape), torch.zeros(shape), torch.eye(*shape)):
            block_columns, depth = packing_of(Projection.of(weight.bfloat16(), None), weight.bfloat16())
            assert block_columns in {32, 64}
            assert depth >= shape[1]


def test_the_tiles_compile_for_amx_on_any_machine():
    import llvmlite.binding as llvm  # noqa: PLC0415
    from llvmlite import ir  # noqa: PLC0415

    from moesaic.kernels.packed_tiles import _generate  # noqa: PLC0415

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for row_tiles, products in ((1, 2), (2, 4)):
        module = ir.Module()
        module.triple = "x86_64-unknown-linux-gnu"
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 9), "tiles")
        b = ir.IRBuilder(function.append_basic_block())
        _generate(b, function.args, row_tiles)
        b.ret_void()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        target = llvm.Target.from_triple(module.triple)
        assembly = target.create_target_machine(cpu="sapphirerapids", opt=3).emit_assembly(parsed)
        assert assembly.count("tdpbf16ps") == products
        assert assembly.count("tileloadd") == 2 * row_tiles + 2 + row_tiles
        assert assembly.count("tilestored") == 2 * row_tiles
        assert assembly.count("tilerelease") == 1


def test_numba_leaves_torch_the_number_of_threads_that_it_had():
    program = """
import torch
torch.set_num_threads(1)
from moesaic.kernels.parallel_loop import as_many_threads_as_torch
import numba
with as_many_threads_as_torch():
    assert numba.get_num_threads() == 1
assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS
assert torch.get_num_threads() == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603
