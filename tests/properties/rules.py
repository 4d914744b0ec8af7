"""The routers' rules in numpy float64 over one token, written from the definitions: ids and weights in order."""

import numpy as np

from tests.properties.formulas import sigma


def softmax(x):
    powers = np.exp(x - np.max(x))
    return powers / powers.sum()


def root_softplus(x):
    return np.sqrt(np.logaddexp(0.0, x))


def best(choice, k):
    """The k highest in falling order; of equal ones the lower id comes first."""
    return sorted(range(len(choice)), key=lambda e: (-choice[e], e))[:k]


def over_sum(w, epsilon=0.0, floor=0.0):
    total = max(w.sum() + epsilon, floor)
    return w / total if total else w


def weighed(scores, ids, *, renormalize, epsilon=0.0, floor=0.0, scale=1.0):
    w = scores[ids]
    return ids, (over_sum(w, epsilon, floor) if renormalize else w) * scale


def inside(choice, groups, kept, score):
    """`choice` with minus infinity outside of the `kept` groups whose `score` is the highest."""
    parts = np.split(choice, groups)
    winners = best([score(np.sort(part)[::-1]) for part in parts], kept)
    return np.concatenate([part if g in winners else np.full(len(part), -np.inf) for g, part in enumerate(parts)])


def softmax_top_k(x, k, **weighing):
    p = softmax(x)
    return weighed(p, best(p, k), **weighing)


def top_k_softmax(x, k):
    ids = best(x, k)
    return ids, softmax(x[ids])


def sigmoid_top_k(x, k, **weighing):
    return weighed(sigma(x), best(x, k), **weighing)


def biased(scores, k, bias, **weighing):
    return weighed(scores, best(scores + bias, k), **weighing)


def grouped_sigmoid(x, k, bias, groups, kept, **weighing):
    s = sigma(x)
    choice = inside(s + bias, groups, kept, lambda part: part[0] + part[1])
    return weighed(s, best(choice, k), **weighing)


def grouped_softmax(x, k, groups, kept, **weighing):
    p = softmax(x)
    return weighed(p, best(inside(p, groups, kept, lambda part: part[0]), k), **weighing)


def expert_scaled(x, k, scale):
    ids, w = softmax_top_k(x, k, renormalize=True)
    return ids, w * scale[ids]


def hashed(x, chosen, epsilon, scale):
    s = root_softplus(x)
    return list(chosen), over_sum(s[list(chosen)], epsilon) * scale


def zero_experts(x, k, num_experts, bias, scale):
    """ids, weights, and the weight of the token itself."""
    p = softmax(x)
    ids = best(p + bias, k)
    w = p[ids] * scale
    real = np.array(ids) < num_experts
    return [e if e < num_experts else -1 for e in ids], np.where(real, w, 0.0), w[~real].sum()


def sparsemixer(x, jitter):
    """Two experts, each against the experts near it; for the second the first takes no part."""
    ids, weights = [], []
    for _ in range(2):
        left = np.array([e for e in range(len(x)) if e not in ids])
        first = left[best(x[left], 1)[0]]
        size = np.maximum(np.abs(x[left]), x[first])
        near = left[~((x[first] - x[left]) / size > 2 * jitter)]
        weights.append(softmax(x[near])[list(near).index(first)])
        ids.append(int(first))
    return ids, np.array(weights)
