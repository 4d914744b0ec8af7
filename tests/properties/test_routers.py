"""Every router against its rule, for any sizes and fields; equal logits among them."""

import math
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic import routers
from tests.properties import formulas, rules
from tests.properties.drawing import seeds
from tests.unchecked import unchecked

TOKENS = 7
weighing = st.fixed_dictionaries(
    {
        "epsilon": st.sampled_from([0.0, 1e-20, 1e-15, 0.25]),
        "scaling_factor": st.sampled_from([1.0, 2.5, 0.125]),
    }
)
sizes = st.integers(1, 40).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, min(e, 9))))


def logits_of(generator, columns):
    """Normal numbers; in every second token some of them are equal to others."""
    x = generator.normal(size=(TOKENS, columns)) * generator.choice([0.5, 3.0, 20.0], size=(TOKENS, 1))
    x[::2] = np.take_along_axis(x[::2], generator.integers(columns, size=x[::2].shape), axis=1)
    return x


def assert_routed(router, x, rule, token_ids=None):
    """`rule` takes the logits of one token and its number."""
    with unchecked():
        got = router(torch.tensor(x), token_ids)
        single = router(torch.tensor(x, dtype=torch.float32), token_ids)
    wanted = [rule(row, token) for token, row in enumerate(x)]
    assert got.topk_ids.tolist() == [[int(e) for e in ids] for ids, *_ in wanted]
    weights = np.array([w for _, w, *_ in wanted])
    np.testing.assert_allclose(got.topk_weights.numpy(), weights, rtol=1e-12, atol=1e-300)
    assert single.topk_weights.dtype == torch.float32
    for ids in single.topk_ids.tolist():
        active = [e for e in ids if e >= 0]
        assert token_ids is not None or len(set(active)) == len(active)
    return got, wanted


def weigh(fields, **more):
    return {"epsilon": fields["epsilon"], "scale": fields["scaling_factor"], **more}


@given(sizes, weighing, st.booleans(), seeds)
def test_softmax(size, fields, renormalize, seed):
    (columns, k), generator = size, np.random.default_rng(seed)
    x = logits_of(generator, columns)
    with unchecked():
        router = routers.SoftmaxTopK(columns, k, renormalize=renormalize, **fields)
    assert_routed(router, x, lambda row, _: rules.softmax_top_k(row, k, **weigh(fields, renormalize=renormalize)))
    assert_routed(routers.TopKSoftmax(columns, k), x, lambda row, _: rules.top_k_softmax(row, k))


@given(sizes, weighing, st.booleans(), seeds)
def test_sigmoid(size, fields, renormalize, seed):
    (columns, k), generator = size, np.random.default_rng(seed)
    x, more = logits_of(generator, columns), weigh(fields, renormalize=renormalize)
    bias = generator.normal(size=columns)
    with unchecked():
        plain = routers.SigmoidTopK(columns, k, renormalize=renormalize, **fields)
        biased = routers.BiasedSigmoidTopK(columns, k, bias=torch.tensor(bias), renormalize=renormalize, **fields)
        root = routers.SqrtSoftplusTopK(columns, k, bias=torch.tensor(bias), **fields)
    assert_routed(plain, x, lambda row, _: rules.sigmoid_top_k(row, k, **more))
    assert_routed(biased, x, lambda row, _: rules.biased(formulas.sigma(row), k, bias, **more))
    rooted = weigh(fields, renormalize=True)
    assert_routed(root, x, lambda row, _: rules.biased(rules.root_softplus(row), k, bias, **rooted))


@given(sizes, st.sampled_from([0.0, 1e-12, 0.5]), seeds)
def test_softmax_with_a_bias_or_a_scale_of_each_expert(size, floor, seed):
    (columns, k), generator = size, np.random.default_rng(seed)
    x, each = logits_of(generator, columns), generator.normal(size=columns) * 0.3
    with unchecked():
        biased = routers.BiasedSoftmaxTopK(columns, k, bias=torch.tensor(each), floor=floor)
        scaled = routers.ExpertScaledSoftmaxTopK(columns, k, expert_scale=torch.tensor(each))
    assert_routed(biased, x, lambda r, _: rules.biased(rules.softmax(r), k, each, renormalize=True, floor=floor))
    assert_routed(scaled, x, lambda row, _: rules.expert_scaled(row, k, each))


@given(st.integers(1, 5), st.integers(2, 6), st.data(), weighing, seeds)
def test_groups(groups, size, data, fields, seed):
    kept = data.draw(st.integers(1, groups))
    k, generator = data.draw(st.integers(1, min(kept * size, 9))), np.random.default_rng(seed)
    x, bias = logits_of(generator, groups * size), generator.normal(size=groups * size) - 1
    renormalize = data.draw(st.booleans())
    more, split = weigh(fields, renormalize=renormalize), {"num_groups": groups, "top_groups": kept}
    with unchecked():
        sigmoid = routers.GroupedSigmoidTopK(
            groups * size, k, bias=torch.tensor(bias), renormalize=renormalize, **split, **fields
        )
        softmax = routers.GroupedSoftmaxTopK(groups * size, k, renormalize=renormalize, **split, **fields)
    assert_routed(sigmoid, x, lambda row, _: rules.grouped_sigmoid(row, k, bias, groups, kept, **more))
    assert_routed(softmax, x, lambda row, _: rules.grouped_softmax(row, k, groups, kept, **more))


@given(sizes, weighing, seeds)
def test_hashed(size, fields, seed):
    (columns, k), generator = size, np.random.default_rng(seed)
    x, table = logits_of(generator, columns), generator.integers(columns, size=(5, k))
    token_ids = generator.integers(5, size=TOKENS)
    with unchecked():
        router = routers.HashedTopK(columns, torch.tensor(table), **fields)
    assert_routed(
        router,
        x,
        lambda row, t: rules.hashed(row, table[token_ids[t]], fields["epsilon"], fields["scaling_factor"]),
        torch.tensor(token_ids),
    )


@given(sizes, st.integers(1, 6), st.sampled_from([1.0, 6.0]), seeds)
def test_zero_experts(size, zero, scale, seed):
    (columns, k), generator = size, np.random.default_rng(seed)
    x, bias = logits_of(generator, columns + zero), generator.normal(size=columns + zero) * 0.2
    with unchecked():
        router = routers.ZeroExpertTopK(
            columns, k, num_zero_experts=zero, bias=torch.tensor(bias), scaling_factor=scale
        )
    got, wanted = assert_routed(router, x, lambda row, _: rules.zero_experts(row, k, columns, bias, scale))
    own = np.array([identity for *_, identity in wanted])
    np.testing.assert_allclose(got.identity_weights.numpy(), own, rtol=1e-12, atol=1e-300)


@given(st.integers(2, 40), st.sampled_from([0.0, 0.01, 0.3]), seeds)
def test_sparsemixer(columns, jitter, seed):
    x = logits_of(np.random.default_rng(seed), columns)
    with unchecked():
        router = routers.SparseMixer(columns, jitter=jitter)
    assert_routed(router, x, lambda row, _: rules.sparsemixer(row, jitter))


def test_every_rule_has_a_property():
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f"routers.{kind.__name__}(" in text for kind in routers.ROUTERS if kind is not routers.CustomRouter)


@given(sizes, seeds)
def test_any_bits_give_distinct_experts(size, seed):
    """Logits of any bit pattern, NaN and infinity among them."""
    (columns, k), generator = size, np.random.default_rng(seed)
    bits = torch.tensor(generator.integers(-(2**31), 2**31, size=(TOKENS, columns)), dtype=torch.int32)
    x = bits.view(torch.float32)
    x[0] = math.nan
    with unchecked():
        bias = torch.tensor(generator.normal(size=columns), dtype=torch.float32)
        for router in (
            routers.SoftmaxTopK(columns, k, renormalize=True),
            routers.TopKSoftmax(columns, k),
            routers.SigmoidTopK(columns, k),
            routers.BiasedSigmoidTopK(columns, k, bias=bias),
            routers.SqrtSoftplusTopK(columns, k, bias=bias),
        ):
            for ids in router(x).topk_ids.tolist():
                assert len(set(ids)) == k
                assert set(ids) <= set(range(columns))
