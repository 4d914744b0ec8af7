"""Checkpoints read to a GPU: the bytes of the files, and rows that the backend chosen there computes with them.

Needs nothing of transformers: what its models add is in tests/integrations/test_load_cuda.py.
"""

import pytest
import torch

from moesaic import BACKENDS, Machine, Plain, Problem, ReLU2, Routing, Scheme, StandardBatch, SwiGLU, bind
from moesaic.checkpoints import GPTQ, Checkpoint, write_experts
from moesaic.conformance.noise import deviation
from moesaic.conformance.tolerance import tolerance
from moesaic.resolve import resolve
from tests.backends import example, numpy_oracle
from tests.checkpoints.examples import CASES, LAYERS, L, named
from tests.checkpoints.test_round_trip import tensors

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
SERVED = ("bf16", "deepseek-v3", "qwen3-fp8", "gpt-oss", "ct-int4", "ct-mxfp4", "ct-nvfp4", "ct-fp8-channel")
"""Conventions that a backend on a GPU has to compute; of others it is enough that they arrive."""


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param


def problem_of(case):
    """The layer of a case, in bfloat16 and with inputs as they are."""
    return Problem(
        num_experts=L,
        top_k=2,
        hidden_size=case.hidden,
        intermediate_size=case.inner,
        activation=ReLU2() if case.block.startswith("backbone") else SwiGLU(),
        scheme=Scheme(case.stored, Plain()),
        bias=case.bias,
    )


def stored_layers(case, directory):
    """A checkpoint of layers whose rows are of a real scale, for which the tolerance is."""
    layers = {n: example.weights(problem_of(case), seed=n).quantize(case.stored) for n in LAYERS}
    for weights in layers.values():
        if isinstance(case.method, GPTQ) and case.method.version == 1:
            for projection in (weights.gate_up, weights.down):
                if "zero_point" in projection.scales:
                    projection.scales["zero_point"].clamp_(min=1)  # this version has no smaller one
    config = {"num_hidden_layers": 4, "num_local_experts": L, **case.config}
    write_experts(directory, layers, case.method, naming=case.naming, block=case.block, config=config)
    return Checkpoint(directory)


def test_every_byte_arrives_and_the_layer_computes_with_it(case, tmp_path):
    checkpoint, problem = stored_layers(case, tmp_path / "model"), problem_of(case)
    for number, layer in zip(LAYERS, checkpoint.layers, strict=True):
        here, there = checkpoint.read(layer.name), checkpoint.read(layer.name, device=DEVICE)
        assert {tensor.device.type for tensor in there.tensors} == {DEVICE}
        wanted, got = tensors(here), tensors(there)
        assert wanted.keys() == got.keys()
        assert all(torch.equal(got[name].cpu(), values) for name, values in wanted.items())
        served = [v.backend for v in resolve(problem, Machine.current(DEVICE), BACKENDS).verdicts if v.eligible]
        assert served or case.name not in SERVED, "no backend computes this on the GPU"
        for backend in served:
            computes(backend, problem, here, there, seed=number)


def computes(backend, problem, here, there, seed):
    """The rows of one expert, of a few and of many, against numpy's reading of the same values."""
    values = {name: getattr(here, name).dequantize(torch.float64).numpy() for name in ("gate_up", "down")}
    oracle = {
        **values,
        **{n: None if b is None else b.double().numpy() for n, b in biases(here).items()},
        "output_scale": None,
        "norm_eps": None,
        "weight_on_input": False,
        "num_experts": L,
        "activation": type(problem.activation).__name__,
        "constants": {"limit": None} if isinstance(problem.activation, ReLU2) else ONE,
    }
    layer = bind(problem, there, backends=(backend,))
    for count in (1, 9, 70):
        hidden, routing = example.rows(problem, count, seed), example.routing(problem, count, seed)
        batch = StandardBatch(hidden.to(DEVICE), Routing(routing.topk_ids.to(DEVICE), routing.topk_weights.to(DEVICE)))
        ids, p = routing.topk_ids.numpy(), routing.topk_weights.double().numpy()
        wanted = torch.from_numpy(numpy_oracle.tokens(hidden.double().numpy(), ids, p, oracle))
        length = max(problem.hidden_size, problem.intermediate_size)
        found, allowed = deviation(layer(batch).cpu(), wanted), tolerance(problem.dtype, problem.scheme, length, count)
        assert not found.exceeds(allowed), f"{backend.name}, {count} tokens: {found}, allowed {allowed}"
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(layer.canonical().tensors, there.tensors, strict=True))


ONE = {"alpha": 1.0, "beta": 0.0, "limit": None}


def biases(weights):
    return {"gate_up_bias": weights.gate_up_bias, "down_bias": weights.down_bias}


def test_the_experts_of_one_rank_arrive_in_the_order_asked_for(tmp_path):
    checkpoint = stored_layers(named("ct-nvfp4"), tmp_path / "model")
    name = checkpoint.layers[0].name
    here, there = (checkpoint.read(name, experts=[4, 0], device=device) for device in ("cpu", DEVICE))
    assert all(torch.equal(t.cpu(), tensors(here)[n]) for n, t in tensors(there).items())
