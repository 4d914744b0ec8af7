"""The rules of the routers in plain Python, one token at a time: loops over floats, no line shared with the package.

Each function takes one row of logits and returns (ids, weights) as lists.
"""

import math


def softmax(row):
    highest = max(row)
    powers = [math.exp(x - highest) for x in row]
    return [p / math.fsum(powers) for p in powers]


def sigmoid(row):
    return [1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x)) for x in row]


def sqrt_softplus(row):
    return [math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x)))) for x in row]


def best(scores, k):
    """The k highest, one after the other; the lower index wins a tie."""
    left, chosen = list(range(len(scores))), []
    for _ in range(k):
        winner = left[0]
        for e in left:
            if scores[e] > scores[winner]:
                winner = e
        chosen.append(winner)
        left.remove(winner)
    return chosen


def over_sum(weights, epsilon=0.0):
    total = math.fsum(weights) + epsilon
    return [w / total if total else 0.0 for w in weights]


def biased(scores, k, bias=None, *, renormalize=True, epsilon=0.0, scale=1.0):
    choice = scores if bias is None else [s + b for s, b in zip(scores, bias, strict=True)]
    ids = best(choice, k)
    weights = [scores[e] for e in ids]
    if renormalize:
        weights = over_sum(weights, epsilon)
    return ids, [w * scale for w in weights]


def top_k_softmax(row, k):
    ids = best(row, k)
    return ids, softmax([row[e] for e in ids])


def ernie(row, k, bias, floor):
    ids, weights = biased(softmax(row), k, bias, renormalize=False)
    return ids, [w / max(math.fsum(weights), floor) for w in weights]


def gemma(row, k, expert_scale):
    ids, weights = biased(softmax(row), k)
    return ids, [w * expert_scale[e] for e, w in zip(ids, weights, strict=True)]


def grouped(scores, k, groups, kept, group_score, bias=None, **weighing):
    """`group_score` takes the choices of one group, highest first."""
    choice = scores if bias is None else [s + b for s, b in zip(scores, bias, strict=True)]
    size = len(scores) // groups
    group_scores = [group_score(sorted(choice[g * size : (g + 1) * size], reverse=True)) for g in range(groups)]
    allowed = {g * size + i for g in best(group_scores, kept) for i in range(size)}
    inside = [e for e in range(len(scores)) if e in allowed]
    ids = [inside[i] for i in best([choice[e] for e in inside], k)]
    return ids, biased([scores[e] for e in ids], k, bias=[-i for i in range(k)], **weighing)[1]


def hashed(row, table_row, epsilon, scale):
    scores = sqrt_softplus(row)
    return list(table_row), [w * scale for w in over_sum([scores[e] for e in table_row], epsilon)]


def zero_experts(row, k, num_experts, bias, scale):
    """(ids, weights, identity weight)."""
    ids, weights = biased(softmax(row), k, bias, renormalize=False, scale=scale)
    identity = math.fsum(w for e, w in zip(ids, weights, strict=True) if e >= num_experts)
    real = [e < num_experts for e in ids]
    return (
        [e if r else -1 for e, r in zip(ids, real, strict=True)],
        [w if r else 0.0 for w, r in zip(weights, real, strict=True)],
        identity,
    )


def sparsemixer(row, jitter):
    ids, weights = [], []
    for _ in range(2):
        left = [e for e in range(len(row)) if e not in ids]
        chosen = left[best([row[e] for e in left], 1)[0]]
        m = row[chosen]
        near = []
        for e in left:
            factor = max(abs(row[e]), m)
            gap = (m - row[e]) / factor if factor else 0.0
            if not gap > 2 * jitter:
                near.append(e)
        weights.append(softmax([row[e] for e in near])[near.index(chosen)])
        ids.append(chosen)
    return ids, weights
