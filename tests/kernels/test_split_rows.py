"""`split_rows`: bfloat16 as two E4M3 numbers times a power of two of 64 columns, against numpy."""

import pytest
import torch

pytest.importorskip("triton")
from tests.kernels import split_cases as cases

each = pytest.mark.parametrize("name", cases.CASES)


@each
def test_in_the_interpreter(name, interpreted):
    cases.CASES[name].check(interpreted[name])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each
def test_on_cuda(name):
    cases.CASES[name].check(cases.CASES[name].run(torch.device("cuda")))
