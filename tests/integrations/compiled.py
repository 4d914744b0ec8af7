"""A program: compiles blocks of patched models into one graph; prints the name of each check that held."""

import sys
import traceback

import pytest
import torch
from torch._dynamo.exc import Unsupported

from moesaic import BACKENDS, TorchGrouped
from moesaic.integrations.transformers import patch, register
from tests.integrations.families import tiny
from tests.integrations.packing import Packing


def one_graph(family, backends):
    """aot_eager, the whole block of router and experts."""
    model = tiny(family)
    patch(model, backends=backends)
    block, x = model.model.layers[-1].mlp, torch.randn(2, 5, 32)
    torch.compiler.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(block, backend="aot_eager", fullgraph=True)(x), block(x))


def inductor(dynamic):
    """Real code, for one or for several numbers of tokens."""
    model = tiny("qwen3_moe")
    patch(model)
    block = model.model.layers[-1].mlp
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for num_tokens in (5, 9) if dynamic else (5,):
            x = torch.randn(2, num_tokens, 32)
            torch.testing.assert_close(compiled(x), block(x))


def registered(fullgraph):
    """Experts are bound outside of graphs: with a break, or not at all."""
    register()
    model = tiny("mixtral")
    model.set_experts_implementation("moesaic")
    block, x = model.model.layers[0].mlp, torch.randn(1, 5, 32)
    torch.compiler.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=fullgraph)
    with torch.no_grad():
        if fullgraph:
            with pytest.raises(Unsupported, match=r"call patch\(model\), or the model once"):
                compiled(x)
        torch.testing.assert_close(block(x), compiled(x))


CHECKS = {
    **{
        f"one_graph-{family}-{backends[0].name}": (one_graph, family, backends)
        for family in ("mixtral", "gpt_oss", "qwen3_moe")
        for backends in (BACKENDS, (TorchGrouped(),), (Packing(),))
    },
    "inductor": (inductor, False),
    "inductor-dynamic": (inductor, True),
    "registered": (registered, False),
    "registered-fullgraph": (registered, True),
}
"""Name of each check to its function and arguments."""


def main():
    for name, (check, *given) in CHECKS.items():
        try:
            check(*given)
        except Exception:  # noqa: BLE001 - the other checks still run
            print(name, file=sys.stderr)  # noqa: T201
            traceback.print_exc()
        else:
            print(name)  # noqa: T201


if __name__ == "__main__":
    main()
