"""`vector_experts`: a few tokens, each pair by itself, with every strip that the backends choose, against numpy."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton")
from tests.kernels import vector_cases as cases

each = pytest.mark.parametrize("name", cases.CASES)


@each
def test_in_the_interpreter(name, interpreted):
    cases.CASES[name].check(interpreted[name])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_on_cuda(name, dtype):
    case = cases.CASES[name]
    case = dataclasses.replace(case, problem=dataclasses.replace(case.problem, dtype=dtype))
    case.check(case.run(torch.device("cuda")))
