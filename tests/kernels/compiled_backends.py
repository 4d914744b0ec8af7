"""A program: compiles what the Triton backends launch; prints one line of JSON a kernel.

It runs in a process of its own, so that neither the interpreter nor the run-time type checks are in the way, and with
whichever triton comes first on the path. `fewer`: what holds most in registers of each, where the other triton compiles
all of them.
"""

import json
import sys
from dataclasses import replace
from functools import partial

import torch
import triton

from moesaic import (
    FP8,
    INT4,
    MXFP4,
    NVFP4,
    HopperGrouped,
    PerBlock,
    PerGroup,
    Plain,
    ReLU2,
    Scheme,
    SwiGLU,
    known_machine,
)
from moesaic.quant.schemes import FP8_BLOCK, FP8_ROW, INT8_ROW, MXFP4_MXFP8, NVFP4_NVFP4
from tests.kernels.absent_layer import AbsentLayer
from tests.kernels.compile_launches import compiling, facts
from tests.kernels.streamed_cases import tilings
from tests.kernels.vector_cases import strips

HOPPER = 90
MANY = 2**17
"""Tokens for which `order_rows` holds the most histograms."""
PLAIN = AbsentLayer()
BIASED = AbsentLayer(2880, 2880, SwiGLU(1.702, 1.0, 7.0), bias=True)
POINTWISE = AbsentLayer(2688, 1856, ReLU2(), bias=True, dtype=torch.float16)
SCALED = AbsentLayer(4096, 1536, SwiGLU(limit=(7.0, 6.0) * 4), weight_on_input=True, dtype=torch.float16)


def streamed(tiling, *, fewer):
    """Launches of one tiling."""
    yield "biased", partial(BIASED.streamed, tiling)
    if not fewer:
        yield "pointwise-rows", partial(POINTWISE.streamed_in_place, tiling)
        yield "scaled", partial(SCALED.streamed, tiling)


def products(*, fewer):
    """Launches of the kernels for many rows."""
    yield "plain", partial(PLAIN.products, MANY)
    yield "biased", partial(BIASED.products, 256)
    yield "scaled", partial(SCALED.products, MANY)
    yield "summed", partial(BIASED.summed, MANY)
    if not fewer:
        yield "scaled-summed", partial(SCALED.summed, MANY)
        yield "pointwise-rows", partial(POINTWISE.products_in_place, 1024)


def orders(experts):
    """Both ways to order the rows of so many experts, each of which is a column in registers."""
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
    from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

    tiles = {"tile_rows": 128, "spare": 32, "group": 8}
    order_rows(torch.zeros(2500, 3, dtype=torch.int32), experts, alignment=32, **tiles)
    nobody = torch.zeros(experts, dtype=torch.int32)
    map_tiles(nobody, nobody, 5000, **tiles)


STORED = {
    "fp8-block": FP8_BLOCK,
    "int8": INT8_ROW,
    "mxfp4": Scheme(MXFP4(), Plain()),
    "int4-zero-point": Scheme(INT4(PerGroup(128), zero_point=True), Plain()),
    "nvfp4": NVFP4_NVFP4,
}


def stored(capability, *, fewer):
    """(name, whether wgmma is meant, launch) with weights as stored."""
    for name, scheme in STORED.items():
        # One tiling each; triton takes wgmma for 16 rows of FP8 or leaves it, from release to release.
        counts = (64, 1024) if scheme == FP8_BLOCK else (8, 64, 1024)
        if capability != HOPPER:
            counts = (8, 40, 64)
        elif fewer:
            counts = (64,)
        for count in counts:
            coded = scheme in (FP8_BLOCK, INT8_ROW)
            wide = capability == HOPPER and (coded or count > 16)
            known = known_machine("h200" if capability == HOPPER else "a100")
            yield f"stored {name} {count}", wide, partial(PLAIN.stored, scheme, count, known)
    if capability == HOPPER:
        yield "expanded", True, partial(PLAIN.expanded, INT8_ROW, 1024)
        for scheme in (FP8_BLOCK, FP8_ROW, replace(FP8_BLOCK, weights=FP8(PerBlock(), scale=torch.float8_e8m0fnu))):
            yield f"coded {scheme.weights}", True, partial(PLAIN.coded, scheme, 1024)
        for scheme in (
            MXFP4_MXFP8,
            Scheme(NVFP4(), Plain()),
            Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain()),
        ):
            yield f"nibbles {scheme.weights}", True, partial(PLAIN.nibbles, scheme, 1024)
            yield f"few nibbles {scheme.weights}", True, partial(PLAIN.nibbles, scheme, 64, 32)
            if not isinstance(scheme.weights, NVFP4) and scheme != MXFP4_MXFP8:
                yield f"split {scheme.weights}", True, partial(PLAIN.split, scheme, 64)
        yield "split with a bias and a short block", True, partial(BIASED.split, Scheme(MXFP4(), Plain()), 64)
        scheme = Scheme(INT4(PerGroup(64), scale=torch.bfloat16), Plain())
        yield "split without a gate", True, partial(replace(POINTWISE, dtype=torch.bfloat16).split, scheme, 64)
        yield "nibbles with a short block", True, partial(BIASED.nibbles, Scheme(MXFP4(), Plain()), 1024)
        yield "coded with a short block", True, partial(POINTWISE.coded, FP8_BLOCK, 1024)


def launches(capability, *, fewer):
    """(name, whether wgmma is meant, launch) of everything that runs on sm_`capability`."""
    known = "h200" if capability == HOPPER else "a100"
    own = {name: tiling for name, tiling in tilings().items() if name.startswith(known)}
    for name, tiling in own.items():
        yield from ((f"streamed {name} {kind}", tiling.swap, run) for kind, run in streamed(tiling, fewer=fewer))
    for name, found in strips().items():
        yield f"vectors {name}", False, partial((BIASED if fewer else PLAIN).vectors, found)
    last = list(own.values())[-1]
    yield "many pairs", last.swap, partial(PLAIN.streamed, last, count=MANY)
    yield "as many experts as are declared", False, partial(orders, HopperGrouped.capabilities.max_experts)
    yield from stored(capability, fewer=fewer)
    if capability == HOPPER:
        yield from ((f"products {kind}", True, run) for kind, run in products(fewer=fewer))


def main(capability, *, fewer):
    """Compile everything once."""
    seen = set()
    for name, wgmma, launch in launches(capability, fewer=fewer):
        with compiling(capability) as kernels:
            launch()
        for kernel_name, kernel in kernels:
            if kernel.hash not in seen:
                seen.add(kernel.hash)
                known = {"launch": name, "kernel": kernel_name, "wgmma_meant": wgmma, "triton": triton.__version__}
                print(json.dumps(known | facts(kernel)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), fewer=sys.argv[2:] == ["fewer"])
