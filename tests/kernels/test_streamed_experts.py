"""`streamed_experts`: both products of every row, with every tiling that the backends choose, against numpy."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton")
from tests.kernels import streamed_cases as cases

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


def test_every_kind_of_tiling_is_tried():
    tilings = [case.tiling for case in cases.CASES.values()]
    assert {tiling.swap for tiling in tilings} == {tiling.tma for tiling in tilings} == {True, False}
    assert {tiling.more > 0 for tiling in tilings} == {True, False}
