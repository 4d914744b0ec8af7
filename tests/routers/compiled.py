"""A program: compiles every router into one graph and compares; prints the name of each that did."""

import torch

from moesaic.routers import deactivate_padding
from tests.routers.comparing import random_logits
from tests.routers.examples import EXAMPLES, identify, token_ids


def main():
    for router in EXAMPLES:
        torch.compiler.reset()

        def routed(logits, ids, num_valid, router=router):
            return deactivate_padding(router(logits, ids), num_valid)

        given = random_logits(5, 8), token_ids(5), torch.tensor(4, dtype=torch.int32)
        got = torch.compile(routed, fullgraph=True, backend="eager")(*given)
        wanted = routed(*given)
        assert torch.equal(got.topk_ids, wanted.topk_ids)
        assert torch.equal(got.topk_weights, wanted.topk_weights)
        print(identify(router))  # noqa: T201


if __name__ == "__main__":
    main()
