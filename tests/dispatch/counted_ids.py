"""A program: a recorder counts in one launch, as on CUDA; prints what it counted, and what there was to count.

It runs in Triton's interpreter, in a process of its own: run-time type checks cannot be traced. The ids are extreme,
then more than a program takes, then a view that is not contiguous, then none; each is counted eagerly and compiled.
"""

import json
import sys
from unittest import mock

import torch

from moesaic.dispatch import load_recorder
from moesaic.kernels import count_ids

NUM_EXPERTS = 5
LAST, FIRST = 2**31 - 1, -(2**31)


def counting(_):
    """As `_one_launch` chooses on CUDA."""

    def count(*given):
        (count_ids.count_as_operator if torch.compiler.is_compiling() else count_ids.count_ids)(*given)

    return count


def main():
    """Both dtypes, two layers; one expert is empty."""
    given = torch.tensor([[0, 4, 0], [-1, 5, 4], [LAST, FIRST, 6], [1, -2, 4]])
    many = torch.randint(-2, 8, (3 * count_ids.BLOCK // 7, 7))
    many[many == 2] = 3
    for dtype in (torch.int32, torch.int64):
        for ids in (given.to(dtype), many.to(dtype), many.to(dtype)[:9].T, given[:0].to(dtype)):
            with mock.patch.object(load_recorder, "_one_launch", counting):
                recorder = load_recorder.LoadRecorder(2, NUM_EXPERTS)

            def record(ids, recorder=recorder):
                recorder.record(1, ids)
                return ids + 1

            record(ids)
            assert torch.equal(torch.compile(record, fullgraph=True, backend="aot_eager")(ids), ids + 1)
            wanted = [2 * int((ids == expert).sum()) for expert in range(NUM_EXPERTS)]
            sys.stdout.write(json.dumps([recorder.read().counts.tolist(), [[0] * NUM_EXPERTS, wanted]]) + "\n")
            outside = [int(recorder._bins[1][place]) for place in (0, -1)]
            assert outside == [0, 0], outside


if __name__ == "__main__":
    main()
