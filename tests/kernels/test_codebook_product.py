"""The kernel of 4-bit weights on a CPU against float64 in numpy: every form, every count of rows, every code."""

import numpy as np
import pytest
import torch

from moesaic import Machine
from moesaic.kernels.codebook_form import FORMS

needs_avx512_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in Machine.current("cpu").features, reason="this processor has no AVX512-BF16"
)
EXPERTS, DEPTH, ROWS = 3, 46, 128
GROUPS = (16, 46)  # the last of 16 has 14; one whole row
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_words(codes):
    """Codes `[E, N, K]` as the bytes that the kernel reads, one number after another."""
    experts, rows, depth = codes.shape
    words = np.zeros((experts, rows // 64, depth // 2, 16, 2), dtype=np.uint16)
    for row in range(rows):
        block, v, lane = row // 64, row % 64 // 16, row % 16
        for k in range(depth):
            words[:, block, k // 2, lane, k % 2] |= codes[:, row, k].astype(np.uint16) << np.uint16(4 * v)
    return torch.from_numpy(words.view(np.uint8).copy())


def in_blocks(scales):
    """`[E, N, G]` as `[E, N / 64, G, 64]`."""
    experts, rows, groups = scales.shape
    return scales.view(experts, rows // 64, 64, groups).transpose(2, 3).contiguous()


def scales_of(form, generator, groups):
    """Scales as they are stored, and what they mean in float64."""
    shape = EXPERTS, ROWS, groups
    if form.scale == "e8m0":
        code = torch.randint(110, 130, shape, dtype=torch.uint8, generator=generator)
        return code, np.exp2(code.numpy().astype(np.float64) - 127)
    if form.scale == "e4m3":
        code = torch.randint(0, 255, shape, dtype=torch.uint8, generator=generator)
        code = torch.where(code % 128 == 127, 3, code)
        size = code.numpy() % 128
        exponent, mantissa = size // 8, size % 8 / 8
        value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent.astype(np.float64) - 7))
        return code, np.where(code.numpy() >= 128, -value, value)
    stored = (torch.rand(shape, generator=generator) / 4 + 0.01).to(getattr(torch, form.scale))
    return stored, stored.double().numpy()


@needs_avx512_bf16
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.scale}{'-zero_point' if f.zero_point else ''}")
def test_every_count_of_rows(form):
    from moesaic.kernels.codebook_product import codebook_product  # noqa: PLC0415

    g = torch.Generator().manual_seed(0)
    numbers = np.array([*E2M1, *(-n for n in E2M1)] if form.scale in {"e8m0", "e4m3"} else range(-8, 8), dtype=float)
    codes = torch.randint(0, 16, (EXPERTS, ROWS, DEPTH), dtype=torch.uint8, generator=g).numpy()
    packed = in_words(codes)
    biases = torch.randn(EXPERTS, ROWS, generator=g)
    factors = torch.rand(EXPERTS, ROWS, generator=g) + 0.5
    for size in GROUPS:
        groups = -(-DEPTH // size)
        stored, scales = scales_of(form, g, groups)
        zero_points = torch.randint(0, 16, (EXPERTS, ROWS, groups), dtype=torch.uint8, generator=g)
        weight = numbers[codes]
        if form.zero_point:
            weight = codes - np.repeat(zero_points.numpy(), size, -1)[..., :DEPTH].astype(float)
        weight = weight * np.repeat(scales, size, -1)[..., :DEPTH]
        if form.factor:
            weight *= factors.double().numpy()[..., None]
        held = packed, in_blocks(stored), in_blocks(zero_points), factors, biases
        address = (*(t.data_ptr() for t in held), ROWS // 64, DEPTH // 2, size // 2)
        for count in (*range(1, 10), 31):
            x = torch.full((count + 4, DEPTH + 6), torch.nan, dtype=torch.bfloat16)[:, :DEPTH]
            x[1:-1] = torch.randn(count + 2, DEPTH, generator=g)
            out = torch.full((count + 4, ROWS), torch.nan)
            codebook_product(form, address, [(2, 1, count), (0, count + 1, 2)], x, out)
            assert out[[0, -1]].isnan().all(), "rows of no group were written"
            for expert, start, stop in ((2, 1, count + 1), (0, count + 1, count + 3)):
                wanted = x[start:stop].double().numpy() @ weight[expert].T + biases[expert].double().numpy()
                np.testing.assert_allclose(
                    out[start:stop].double().numpy(), wanted, rtol=1e-5, atol=2e-5 * wanted.std()
                )


@needs_avx512_bf16
@pytest.mark.parametrize("scale", ["e8m0", "e4m3", "float16"])
def test_every_code_of_a_scale(scale):
    """One number is 1, so each output is a scale: subnormal ones too, and NaN where the code stands for none."""
    from moesaic.kernels.codebook_product import codebook_product  # noqa: PLC0415

    form = next(f for f in FORMS if f.scale == scale and not f.zero_point)
    one = form.numbers.index(1.0)
    bits = torch.arange(256, dtype=torch.uint8) if scale != "float16" else torch.arange(0, 65536, 256).to(torch.int16)
    kinds = {"e8m0": torch.float8_e8m0fnu, "e4m3": torch.float8_e4m3fn, "float16": torch.float16}
    wanted = bits.view(kinds[scale]).float()
    codes = torch.full((1, 4, 1, 64), one << 4 | one, dtype=torch.uint8)
    ones, zeros = torch.ones(1, 256), torch.zeros(1, 256)
    held = codes, bits, codes, ones, zeros
    x = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    out = torch.full((1, 256), torch.nan)
    codebook_product(form, (*(t.data_ptr() for t in held), 4, 1, 1), [(0, 0, 1)], x, out)
    torch.testing.assert_close(out[0], wanted, rtol=0, atol=0, equal_nan=True)
