"""A program: compiles calls of a recorder into one graph; prints what it counted, and what there was to count.

It runs in a process of its own, because the run-time type checks of the test run cannot be traced.
"""

import json
import sys

import torch

from moesaic import Local, Routing
from moesaic.dispatch.load_recorder import FEW, LoadRecorder
from moesaic.dispatch.recorded import Recorded


def dispatched():
    """By a dispatcher, which reaches the recorder through the one inside."""
    recorder, ids = LoadRecorder(2, 5), torch.randint(-1, 7, (9, 3)).int()
    recorded, hidden, weights = Recorded(Local(), recorder, 1), torch.randn(9, 4), torch.rand(9, 3)

    def call(hidden, ids, weights):
        batch, receipt = recorded.dispatch(hidden, Routing(ids, weights))
        return recorded.combine(batch.rows * 2, receipt)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(compiled(hidden, ids, weights), hidden * 2)
    wanted = [[0] * 5, [2 * int((ids == expert).sum()) for expert in range(5)]]
    sys.stdout.write(json.dumps([recorder.read().counts.tolist(), wanted]) + "\n")


def main():
    """Two layers, twice; few ids and many."""
    for rows in (3, FEW // 2):
        recorder, ids = LoadRecorder(2, 5), torch.randint(-1, 7, (rows, 3)).int()

        def both(topk_ids, recorder=recorder):
            recorder.record(0, topk_ids)
            recorder.record(1, topk_ids.T)
            return topk_ids + 1

        compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            assert torch.equal(compiled(ids), ids + 1)
        wanted = [[2 * int((ids == expert).sum()) for expert in range(5)]] * 2
        sys.stdout.write(json.dumps([recorder.read().counts.tolist(), wanted]) + "\n")


if __name__ == "__main__":
    main()
    dispatched()
