"""Routers on a GPU: the CPU's answers, no synchronisation, and graphs that are replayed with other contents."""

import pytest
import torch

from moesaic.routers import deactivate_padding
from moesaic.routers.selection import top_ids
from tests.routers.comparing import random_logits
from tests.routers.examples import every_router, token_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


def assert_equal(got, wanted):
    assert torch.equal(got.topk_ids.cpu(), wanted.topk_ids)
    torch.testing.assert_close(got.topk_weights.cpu(), wanted.topk_weights, equal_nan=True)
    if wanted.identity_weights is not None:
        torch.testing.assert_close(got.identity_weights.cpu(), wanted.identity_weights, equal_nan=True)


@every_router
def test_equals_the_cpu_without_synchronising(router):
    logits, near = random_logits(300, 8), router.to("cuda")
    logits[7] = float("nan")
    given = logits.cuda(), token_ids(300).cuda(), torch.tensor(290, dtype=torch.int32).cuda()
    near(*given[:2])  # the first call may load kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = deactivate_padding(near(*given[:2]), given[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_equal(got, deactivate_padding(router(logits, token_ids(300)), 290))


@every_router
def test_a_captured_graph_follows_its_contents(router):
    near = router.to("cuda")
    logits, ids, num_valid = random_logits(33, 8).cuda(), token_ids(33).cuda(), torch.tensor(33).int().cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        deactivate_padding(near(logits, ids), num_valid)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = deactivate_padding(near(logits, ids), num_valid)
    other = random_logits(33, 8, seed=5)
    logits.copy_(other)
    ids.copy_(token_ids(33).flip(0))
    num_valid.fill_(20)
    graph.replay()
    assert_equal(got, deactivate_padding(router(other, token_ids(33).flip(0)), 20))


@pytest.mark.parametrize("width", [6, 31, 64, 129, 512, 896, 1025, 4097, 9000])
def test_ties_and_nan_on_every_path_of_the_sort(width):
    """NaN of either sign, both zeros and infinities: the order is the CPU's, which test_selection.py checks."""
    nan = torch.tensor([0x7FC00000, -0x00400000], dtype=torch.int32).view(torch.float32)
    pool = torch.cat((nan, torch.tensor([-0.0, 0.0, float("inf"), -float("inf"), 1.0])))
    for num_tokens in (1, 5, 600):
        picks = torch.randint(0, 7, (num_tokens, width), generator=torch.Generator().manual_seed(width))
        scores = pool[picks]
        assert torch.equal(top_ids(scores.cuda(), 6).cpu(), top_ids(scores, 6))
