"""What every router promises: NaN rows, dtypes, no tokens, untouched inputs, gradients and torch.compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import moesaic
from moesaic.errors import RouterError
from moesaic.routers import ROUTERS, Router
from tests.routers.comparing import random_logits
from tests.routers.examples import BY_LOGITS, EXAMPLES, every_router, identify, token_ids

NAN, INF = float("nan"), float("inf")
by_logits = pytest.mark.parametrize("router", BY_LOGITS, ids=identify)


def test_every_class_has_an_example():
    assert {type(router) for router in EXAMPLES} == set(ROUTERS)
    assert all(issubclass(router, Router) for router in ROUTERS)


@by_logits
@pytest.mark.parametrize("bad", [[NAN] * 8, [INF] * 8, [-INF] * 8, [0.0] * 7 + [NAN], [INF] + [0.0] * 7])
def test_a_bad_row_gives_distinct_ids_and_spares_the_others(router, bad):  # F36
    good = random_logits(2, 8)
    both = router(torch.stack((good[0], torch.tensor(bad), good[1])))
    alone = router(good)
    assert torch.equal(both.topk_ids[::2], alone.topk_ids)
    assert torch.equal(both.topk_weights[::2], alone.topk_weights)
    ids = [e for e in both.topk_ids[1].tolist() if e >= 0]  # -1: zero experts
    assert len(set(ids)) == len(ids)
    assert all(0 <= e < 8 for e in ids)
    if bad == [NAN] * 8:
        assert both.topk_weights[1].isnan().all()
        assert ids == list(range(len(ids)))


@by_logits
def test_more_experts_of_one_score_than_slots(router):
    """All logits equal: without a bias the first K experts; with one, still the same answer for every row."""
    routing = router(torch.zeros(300, 8))
    assert (routing.topk_ids == routing.topk_ids[0]).all()
    if not hasattr(router, "bias"):
        assert routing.topk_ids[0].tolist() == list(range(routing.topk_ids.shape[1]))


@every_router
def test_dtypes(router):
    logits = random_logits(3, 8)
    half = router(logits.bfloat16(), token_ids(3))
    same = router(logits.bfloat16().float(), token_ids(3))
    assert half.topk_weights.dtype == torch.float32
    assert torch.equal(half.topk_ids, same.topk_ids)
    assert torch.equal(half.topk_weights, same.topk_weights)
    assert router(logits.double(), token_ids(3)).topk_weights.dtype == torch.float64


@every_router
def test_no_tokens(router):  # F25
    routing = router(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64))
    assert routing.topk_ids.shape == router(torch.zeros(1, 8), token_ids(1)).topk_ids[:0].shape
    assert routing.topk_ids.dtype == torch.int32
    assert routing.topk_weights.dtype == torch.float32


@every_router
def test_inputs_are_unchanged_and_any_strides_do(router):  # F27
    logits = random_logits(8, 5).T
    kept = logits.clone()
    first, second = router(logits, token_ids(5)), router(logits.contiguous(), token_ids(5))
    assert torch.equal(logits, kept)
    assert torch.equal(first.topk_ids, second.topk_ids)
    assert torch.equal(first.topk_weights, second.topk_weights)


@every_router
def test_gradients_reach_the_logits(router):
    logits = (random_logits(2, 8).double()).requires_grad_()

    def weights(values):
        routing = router(values, token_ids(2))
        return routing.topk_weights, *(() if routing.identity_weights is None else (routing.identity_weights,))

    assert torch.autograd.gradcheck(weights, (logits,))


def test_traceable_as_one_graph():
    """In a process of its own: torch.compile cannot trace the run-time type checks of this one."""
    places = (Path(moesaic.__file__).parents[1], Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "tests.routers.compiled"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [identify(router) for router in EXAMPLES]


@pytest.mark.usefixtures("unchecked")
@every_router
@pytest.mark.parametrize("logits", [torch.zeros(3, 8).int(), torch.zeros(8), torch.zeros(1, 3, 8)])
def test_logits_of_another_kind_are_refused(router, logits):
    with pytest.raises(RouterError, match="but it needs floating"):
        router(logits, token_ids(3))


@pytest.mark.parametrize("router", EXAMPLES[:-1], ids=identify)
@pytest.mark.parametrize("num_experts", [7, 9])
def test_another_number_of_experts_is_refused(router, num_experts):  # F41
    with pytest.raises(RouterError, match=f"for 8 logits per token, but it got {num_experts}"):
        router(torch.zeros(3, num_experts), token_ids(3))
