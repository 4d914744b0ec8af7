"""A program: compiles bound layers into one graph in many ways; prints the name of each check that held.

It runs in a process of its own, because the run-time type checks of the test run cannot be traced.
"""

import dataclasses
import itertools
import sys
import traceback
import warnings

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from moesaic import (
    BACKENDS,
    BatchedBatch,
    BatchedExperts,
    GroupedBatch,
    GroupedContiguous,
    Local,
    MoE,
    PaddedStandard,
    Reference,
    Router,
    Routing,
    Standard,
    StandardBatch,
    bind,
)
from tests.backends import example, feeding

LAYOUTS = (Standard(), PaddedStandard(), GroupedContiguous(4), BatchedExperts())
DTYPES = (torch.float32, torch.bfloat16)
MODES = ("eager", "aot_eager", "inductor")


class TopTwo(Router):
    """Softmax, two best, and a tenth of the hidden state itself."""

    def __call__(self, logits, token_ids=None):
        weights, ids = torch.softmax(logits.float(), dim=-1).topk(2)
        return Routing(ids, weights, identity_weights=torch.full_like(weights[:, 0], 0.1))


def one_graph(layout, dtype, mode):
    case = example.problem(layout=layout, dtype=dtype, bias=True)
    given = example.weights(case)
    batch, _, defined = feeding.feed(case, given, float("nan"))
    experts, live = bind(case, given), torch.from_numpy(defined)
    before = batch.rows.clone()
    got = torch.compile(experts, fullgraph=True, backend=mode)(batch)
    wanted = experts(batch)
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    assert torch.equal(got[live], wanted[live])
    assert torch.equal(batch.rows.nan_to_num(), before.nan_to_num())
    assert got.untyped_storage().data_ptr() != batch.rows.untyped_storage().data_ptr()


def tensors(case, num_tokens):
    routing = example.routing(case, num_tokens)
    return example.rows(case, num_tokens), routing.topk_ids, routing.topk_weights


def token_counts_share_graphs():
    case = example.problem()
    experts, counter = bind(case, example.weights(case)), CompileCounterWithBackend("aot_eager")

    def layer(rows, ids, weights):
        return experts(StandardBatch(rows * 2, Routing(ids, weights))) + 1

    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for num_tokens in (7, 3, 64, 5, 129, 31):
        given = tensors(case, num_tokens)
        torch.testing.assert_close(compiled(*given), layer(*given))
    assert counter.frame_count <= 2, f"{counter.frame_count} graphs for six token counts"
    for num_tokens in (1, 0, 2, 1, 0, 300):
        given = tensors(case, num_tokens)
        assert compiled(*given).shape == (num_tokens, case.hidden_size)
        torch.testing.assert_close(compiled(*given), layer(*given))
    assert counter.frame_count <= 4, f"{counter.frame_count} graphs, where 0 and 1 tokens may each have one more"


def strides_in_the_graph_are_those_of_the_rows():
    """Rows that are not contiguous come back contiguous, in the graph's plan as in truth, whatever the backend does."""
    case = example.problem(layout=GroupedContiguous())
    offsets, counts = torch.tensor([[0, 0, 3, 3, 3], [0, 3, 0, 0, 4]], dtype=torch.int32)
    for backends in (BACKENDS, (Reference(),)):
        experts = bind(case, example.weights(case), backends=backends)

        def layer(rows, experts=experts):
            out = experts(GroupedBatch(rows.T.contiguous().T, offsets, counts))
            return out, out.stride()

        rows = example.rows(case, 7)
        out, promised = torch.compile(layer, fullgraph=True, backend="aot_eager")(rows)
        assert out.stride() == promised == (case.hidden_size, 1)
        torch.testing.assert_close(out, layer(rows)[0])


def a_whole_layer_is_one_graph():
    case = example.problem(top_k=2)
    experts = bind(case, example.weights(case))
    moe = MoE(TopTwo(), Local(), experts, shared=torch.nn.Linear(case.hidden_size, case.hidden_size))
    hidden, logits = example.rows(case, 12).view(3, 4, -1), torch.randn(3, 4, case.num_experts)
    with torch.no_grad():
        for mode in MODES:
            got = torch.compile(moe, fullgraph=True, backend=mode)(hidden, logits)
            torch.testing.assert_close(got, moe(hidden, logits))


def two_layers_in_one_graph_stay_apart():
    case = example.problem()
    one, other = bind(case, example.weights(case, seed=3)), bind(case, example.weights(case, seed=4))
    rows, ids, weights = tensors(case, 7)

    def both(rows, ids, weights, first, second):
        hidden = first(StandardBatch(rows, Routing(ids, weights)))
        return second(StandardBatch(hidden, Routing(ids, weights)))

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for first, second in ((one, other), (other, one), (one, one)):
        got, wanted = compiled(rows, ids, weights, first, second), both(rows, ids, weights, first, second)
        torch.testing.assert_close(got, wanted)


def gradients(run, batch):
    leaves = (
        [batch.rows] if isinstance(batch, GroupedBatch | BatchedBatch) else [batch.rows, batch.routing.topk_weights]
    )
    for leaf in leaves:
        leaf.requires_grad_().grad = None
    run(batch).float().square().sum().backward()
    return [leaf.grad for leaf in leaves]


def gradients_flow_beside_the_graph():
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        case = example.problem(layout=layout, dtype=dtype, differentiable=True)
        given = example.weights(case)
        batch, _, _ = feeding.feed(case, given, 0.0)
        experts = bind(case, given)

        def layer(batch, experts=experts):
            return experts(dataclasses.replace(batch)) * 2

        compiled = torch.compile(layer, backend="aot_eager")
        for got, wanted in zip(gradients(compiled, batch), gradients(layer, batch), strict=True):
            assert wanted.abs().sum() > 0
            torch.testing.assert_close(got, wanted)


CHECKS = {
    **{
        f"one graph: {layout!r} {dtype} {mode}": lambda given=(layout, dtype, mode): one_graph(*given)
        for layout, dtype, mode in itertools.product(LAYOUTS, DTYPES, MODES)
    },
    **{
        check.__name__.replace("_", " "): check
        for check in (
            token_counts_share_graphs,
            strides_in_the_graph_are_those_of_the_rows,
            a_whole_layer_is_one_graph,
            two_layers_in_one_graph_stay_apart,
            gradients_flow_beside_the_graph,
        )
    },
}


def main():
    warnings.simplefilter("error")
    for message in (
        ".*torch.jit",
        "The .grad attribute of a Tensor",
    ):  # torch's own, in inductor and after a graph break
        warnings.filterwarnings("ignore", message=message)
    for name, check in CHECKS.items():
        torch.compiler.reset()
        try:
            check()
        except Exception:  # noqa: BLE001 - the other checks still run
            print(name, file=sys.stderr)  # noqa: T201
            traceback.print_exc()
        else:
            print(name)  # noqa: T201


if __name__ == "__main__":
    main()
