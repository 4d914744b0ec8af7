"""A program: compiles kernels for sm_90 without a GPU; prints one line of JSON a kernel with what its code holds.

It runs in a process of its own, so that neither the interpreter nor the run-time type checks are in the way.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from moesaic.kernels.activation_expressions import expression
from moesaic.kernels.masked_activation import _masked_activation
from tests.activations import formulas
from tests.activations.masked_cases import FOUR_EXPERTS

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TARGET = GPUTarget("cuda", 90, 32)
CASES = {
    **{f"{a!r}-slabs": (a, True) for a in (*formulas.CASES, *FOUR_EXPERTS)},
    **{f"{a!r}-flat": (a, False) for a in (formulas.CASES[1], formulas.CASES[-1], FOUR_EXPERTS[0])},
}


def masked_activation(activation, batched):
    """The count-aware kernel for bfloat16 rows, as the launcher specialises it."""
    chosen = expression(activation, torch.device("cpu"))
    constexprs = {
        "EXPRESSION": chosen.function,
        "PER_EXPERT": chosen.per_expert,
        "GATED": activation.gated,
        "BATCHED": batched,
        "READ_IDS": not batched and any(chosen.per_expert),
        "EXPERTS": 32 if batched else 1,
        "HEIGHT": 2,
        "COLUMNS": 1024,
    }
    # The launcher's specialisation: strides of columns are 1, sizes are multiples of 16.
    names = ("num_experts", "num_constants", "capacity", "width")
    sixteen = [["tt.divisibility", 16]]
    signature = {"rows": "*bf16", "out": "*bf16", "counts": "*i32", "ids": "*i32"}
    signature["constants"] = tuple("*fp32" if each else "fp32" for each in chosen.per_expert)
    signature["row_strides"] = signature["out_strides"] = ("i32", "i32", "constexpr")
    signature |= dict.fromkeys(names, "i32") | dict.fromkeys(constexprs, "constexpr")
    attrs = {(i,): sixteen for i in (0, 1, 9, 10)} | {(p, q): sixteen for p in (5, 6) for q in (0, 1)}
    source = ASTSource(_masked_activation.kernel, signature, constexprs | {(5, 2): 1, (6, 2): 1}, attrs)
    return triton.compile(source, target=TARGET, options={"num_warps": 4})


def stack_bytes(cubin):
    """Bytes of stack a thread, which is where registers spill to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return int(re.search(r"STACK:(\d+)", done.stdout)[1])


def facts(name):
    """What the machine code of a case holds."""
    kernel = masked_activation(*CASES[name])
    ptx = kernel.asm["ptx"]
    return {
        "name": name,
        "stack_bytes": stack_bytes(kernel.asm["cubin"]),
        "loads_of_16_bytes": len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)),
        "laundering": len(re.findall(r"\b(?:min|max)\.f32", ptx)),
        "keeping_nan": len(re.findall(r"\b(?:min|max)\.NaN\.f32", ptx)),
        "approximate_tanh": ptx.count("tanh.approx"),
        "shared_bytes": kernel.metadata.shared,
    }


if __name__ == "__main__":
    for case_name in CASES:
        print(json.dumps(facts(case_name)), flush=True)  # noqa: T201
