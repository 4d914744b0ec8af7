"""load on a GPU: packed experts go straight to the device, and give the logits of the same model elsewhere.

transformers takes a `device_map` with accelerate only. Models have one MoE layer each, so that a router's near tie that
rounding decides otherwise cannot change what a second one sees.
"""

import pytest
import torch
import transformers

from moesaic import Reference
from moesaic.errors import PatchError
from moesaic.integrations.transformers import load, patch, unpatch
from moesaic.integrations.transformers.discovery import find_layers
from moesaic.integrations.transformers.state import packed_weights
from tests.integrations.families import ids, output
from tests.integrations.stored import kind_of, twin
from tests.integrations.test_families import RMS, error
from tests.integrations.test_load import example

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
ODD_BLOCKS = "minimax-m2"
"""Here in blocks of 16 rows and 24 columns, which no kernel reads: those take columns by powers of two."""
NAMES = ("qwen3-fp8", ODD_BLOCKS, "gpt-oss", "ct-int4", "ct-nvfp4", "ct-mxfp4", "awq")
"""FP8 in blocks, MXFP4 as gpt-oss has it, packed INT4, NVFP4, and beside them other conventions."""


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def packed(model):
    """Of each layer, the weights as they were loaded."""
    return [packed_weights(layer.module) for layer in find_layers(model)]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_logits_are_those_of_the_model_on_the_cpu(name, tmp_path):
    family, _, directory = example(name, tmp_path)
    here = load(kind_of(family), directory, dtype=torch.float32)
    there = load(kind_of(family), directory, dtype=torch.float32, device_map=DEVICE)
    assert {parameter.device.type for parameter in there.parameters()} == {DEVICE, "meta"}
    for mine, theirs in zip(packed(here), packed(there), strict=True):
        assert {tensor.device.type for tensor in theirs.tensors} == {DEVICE}
        assert all(torch.equal(a, b.cpu()) for a, b in zip(mine.tensors, theirs.tensors, strict=True))
    patch(here, strict=True)
    patch(there, strict=True, backends=(Reference(),))  # in float32, so that no router decides otherwise
    for tokens in (ids(), ids(1)):
        got = output(there, input_ids=tokens.to(DEVICE)).cpu()
        assert error(got, output(here, input_ids=tokens)) <= RMS


@pytest.mark.parametrize("name", [name for name in NAMES if name != ODD_BLOCKS])
def test_the_kernels_agree_with_transformers_in_bfloat16(name, tmp_path):
    family, case, directory = example(name, tmp_path)
    wanted = twin(family, case, directory).to(DEVICE, torch.bfloat16)
    model = load(kind_of(family), directory, dtype=torch.bfloat16, device_map=DEVICE)
    report = patch(model, strict=True)
    assert {layer.format for layer in report.covered} == {case.stored}
    assert not {layer.backend.name for layer in report.covered} & {"reference", "torch_grouped"}
    before = output(model, input_ids=ids().to(DEVICE))
    expected = output(wanted, input_ids=ids().to(DEVICE)).float()
    assert (before.float() - expected).norm() < 0.02 * expected.norm()
    unpatch(model)
    assert all(tensor.device.type == DEVICE for weights in packed(model) for tensor in weights.tensors)
    patch(model, strict=True)
    assert torch.equal(output(model, input_ids=ids().to(DEVICE)), before)


def test_blocks_that_no_kernel_reads_are_refused_with_the_reason(tmp_path):
    family, _, directory = example(ODD_BLOCKS, tmp_path)
    model = load(kind_of(family), directory, dtype=torch.bfloat16, device_map=DEVICE)
    with pytest.raises(PatchError, match=r"triton_quantized \(scheme: needs weights and inputs in formats"):
        patch(model, strict=True)


def test_the_device_of_a_context_is_taken_as_the_device_map(tmp_path):
    family, _, directory = example("ct-int4", tmp_path)
    by_map = load(kind_of(family), directory, dtype=torch.bfloat16, device_map=f"{DEVICE}:0")
    with torch.device(DEVICE):
        by_context = load(kind_of(family), directory, dtype=torch.bfloat16)
    tokens = ids().to(DEVICE)
    assert torch.equal(output(by_context, input_ids=tokens), output(by_map, input_ids=tokens))


def test_a_packed_model_is_not_moved_afterwards(tmp_path):
    family, _, directory = example("ct-int4", tmp_path)
    model = load(kind_of(family), directory, dtype=torch.bfloat16)
    with pytest.raises(PatchError, match=r"cannot be moved.* load it with the device_map"):
        model.to(DEVICE)
    with pytest.raises(PatchError, match="cannot be moved"):
        model.cuda()
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu", "meta"}
    output(model)
