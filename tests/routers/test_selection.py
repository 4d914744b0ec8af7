"""The shared steps: the best ids and renormalisation."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic.routers.selection import renormalized, top_ids
from tests.routers import oracle

NAN, INF = float("nan"), float("inf")


@given(st.lists(st.sampled_from([-INF, -1.0, -0.0, 0.0, 0.5, 2.0, INF, NAN]), min_size=1, max_size=20), st.data())
def test_stable_and_distinct(row, data):
    top_k = data.draw(st.integers(1, len(row)))
    ids = top_ids(torch.tensor([row]), top_k)[0].tolist()
    assert len(set(ids)) == top_k
    assert ids == oracle.best([INF if x != x else x for x in row], top_k)  # noqa: PLR0124


def test_ties_far_apart_keep_their_order():
    """Long rows take other paths of a sort than short ones."""
    for width in (31, 33, 129, 896, 5000):
        scores = (torch.arange(width) % 3 == 1).float().expand(3, width)
        wanted = [e for e in range(width) if e % 3 == 1][:10]
        assert top_ids(scores, 10).tolist() == [wanted] * 3


def test_renormalised_rows_sum_to_one_or_zero():
    weights = torch.tensor([[1.0, 3.0], [0.0, 0.0], [1e-30, 1e-30], [NAN, 1.0]])
    got = renormalized(weights)
    assert got[:3].tolist() == [[0.25, 0.75], [0.0, 0.0], [0.5, 0.5]]
    assert got[3].isnan().all()


def test_epsilon_and_floor():
    weights = torch.tensor([[1.0, 3.0]])
    assert renormalized(weights, epsilon=4.0).tolist() == [[0.125, 0.375]]
    assert renormalized(weights, floor=8.0).tolist() == [[0.125, 0.375]]
    assert renormalized(weights, floor=2.0).tolist() == [[0.25, 0.75]]
