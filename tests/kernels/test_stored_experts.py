"""Products with weights as stored, in the interpreter, against the oracles of the formats and of the layer."""

import pytest

pytest.importorskip("triton")
from tests.kernels import stored_cases as cases


@pytest.mark.parametrize("name", cases.CASES)
def test_in_the_interpreter(name, interpreted):
    cases.CASES[name].check(interpreted[name])
