"""A program: compiles `vector_experts` for sm_90; prints a line for each address of an inner row in its kernels.

It runs in a process of its own, as `compiled_backends.py` does.
"""

from moesaic.backends.triton_tilings import vector_launch
from moesaic.tuning import Vector
from tests.kernels.absent_layer import AbsentLayer
from tests.kernels.compile_launches import compiling

if __name__ == "__main__":
    with compiling(90) as kernels:
        AbsentLayer().vectors(vector_launch(Vector((2, 1024, 1, 2), (4, 1024, 4, 4))))
    for name, kernel in kernels:
        for line in kernel.asm["ttir"].splitlines():
            if "tt.addptr %inner_rows," in line:
                print(name, line.split(" loc")[0].split()[-1])  # noqa: T201
