"""A program: compiles the exchanges through windows, and the count of ids, for sm_90; prints one line of JSON a kernel.

It runs in a process of its own, so that neither the interpreter nor the run-time type checks are in the way.
"""

import json
import re
from itertools import product
from unittest import mock

import torch
import triton

from moesaic.kernels import count_ids, exchange_sums, exchange_tokens
from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.kernels.exchange_tokens import Arrivals
from moesaic.kernels.peer_window import PeerWindow, aligned
from tests.kernels.compile_launches import compiling, facts, machine_code

TOKENS, SLOTS, EXPERTS = 64, 8, 128
OPTIONS = exchange_tokens.launch_options


def on_card(*given, **fields):
    """As for a CUDA device."""
    return {**OPTIONS(*given, **fields), "debug": True, "sanitize_overflow": False}


def launch(num_ranks, hidden):
    """Tokens there, as they are and as FP8, without counting and with it; their sums back, and sums in float32."""
    ints = {"dtype": torch.int32}
    rows = torch.zeros(TOKENS * num_ranks, hidden, dtype=torch.bfloat16)
    ids = torch.zeros(TOKENS * num_ranks, SLOTS, **ints)
    arrivals = Arrivals(rows, ids, ids.float(), ids[:TOKENS], torch.zeros(num_ranks, **ints), torch.zeros((), **ints))
    sizes = (TOKENS, aligned(4 * hidden) + 64, 1000)
    plan = ExchangePlan.of(TOKENS, 132, num_ranks)
    window = PeerWindow.over(torch.zeros(1, dtype=torch.uint8), torch.zeros(num_ranks).long(), 1, sizes, plan)
    tables = (torch.zeros(EXPERTS, 1, **ints), *[torch.zeros(EXPERTS, **ints)] * 3)
    routing = (ids[:TOKENS], ids[:TOKENS].float())
    for coded, bins in product((False, True), (None, torch.zeros(EXPERTS + 2).long())):
        exchange_tokens.exchange_tokens(rows[:TOKENS], *routing, tables, window, arrivals, coded=coded, bins=bins)
    for sums in (rows, rows.float()):
        exchange_sums.exchange_sums(sums, arrivals, window, rows[:TOKENS])


def main():
    """On two ranks and on three, rows of one block and of four; of twice as many where rows are wide or coded."""
    with (
        compiling(90) as kernels,
        mock.patch.object(exchange_tokens, "launch_options", on_card),
        mock.patch.object(exchange_sums, "launch_options", on_card),
    ):
        launch(2, 2048)
        launch(3, 7168)
        count_ids.count_ids(torch.zeros(TOKENS * SLOTS, dtype=torch.int32), torch.zeros(EXPERTS + 2).long(), EXPERTS)
    for name, kernel in kernels:
        ptx = kernel.asm["ptx"]
        found = {
            "kernel": name,
            "triton": triton.__version__,
            "narrow_row_accesses": len(re.findall(r"(?:ld|st)\.global\.(?:v\d\.)?b(?:8|16)\b", ptx)),
            "released": len(re.findall(r"atom\.global\.sys\.release\.exch\.b64", ptx)),
            "acquired": len(re.findall(r"atom\.global\.sys\.acquire\.add\.u64", ptx)),
            "spills": facts(kernel)["spills"],
            "counted": len(re.findall(r"atom\.global\.gpu\.relaxed\.add\.u64", ptx)),
            "waits_for_sums": len(re.findall(r"\bATOMG\b", machine_code(kernel.asm["cubin"]))),
            "to_codes": ptx.count("cvt.rn.satfinite.e4m3x2.f32"),
        }
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
