"""How kernels read and round a format: what they were not written for is declined, never read as something else."""

from dataclasses import dataclass, replace

import pytest
import torch

from moesaic import FP8, INT8, PerBlock, PerGroup, PerRow, Plain, Scheme, TritonQuantized, known_machine
from moesaic.quant import PerTensor
from moesaic.quant.granularity import Granularity
from tests.backends import example

pytest.importorskip("triton")


@dataclass(frozen=True)
class PerTwoRows(Granularity):
    """One that no kernel knows, as anybody may add it."""

    def tile(self, rows, columns):
        return 2, max(columns, 1)


def declined(scheme):
    """The reasons why TritonQuantized does not serve a scheme on an H200."""
    problem = replace(example.problem(dtype=torch.bfloat16), hidden_size=64, intermediate_size=64, scheme=scheme)
    return TritonQuantized().reasons_against(problem, known_machine("h200"))


@pytest.mark.parametrize("weights", [FP8(PerTwoRows()), INT8(PerTwoRows())], ids=repr)
def test_weights_in_tiles_that_no_kernel_knows_are_declined(weights):
    from moesaic.backends.format_forms import stored_form  # noqa: PLC0415

    assert stored_form(weights) is None
    assert [reason.code.name for reason in declined(Scheme(weights, Plain()))] == ["SCHEME"]


@pytest.mark.parametrize("inputs", [FP8(PerTwoRows()), INT8(PerTwoRows())], ids=repr)
def test_inputs_in_tiles_that_no_kernel_knows_are_declined(inputs):
    from moesaic.backends.format_forms import rounded_form  # noqa: PLC0415

    assert rounded_form(inputs) is None
    assert [reason.code.name for reason in declined(Scheme(INT8(PerRow()), inputs))] == ["SCHEME"]


@pytest.mark.parametrize(
    ("granularity", "rows", "columns"),
    [(PerTensor(), 0, 0), (PerRow(), 1, 0), (PerGroup(32), 1, 32), (PerBlock(48, 64), 48, 64)],
    ids=repr,
)
def test_every_granularity_of_the_package_is_read_by_its_own_tiles(granularity, rows, columns):
    from moesaic.backends.format_forms import stored_form  # noqa: PLC0415

    form = stored_form(FP8(granularity))
    assert (form.tile_rows, form.tile_columns) == (rows, columns)
    assert declined(Scheme(FP8(granularity), Plain())) == ()
