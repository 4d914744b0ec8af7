"""open_window: memory that the ranks of one host write into directly, over torch's symmetric memory.

Each step is compared between the ranks before the next, so that what one of them lacks is an error on all.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from moesaic.checks import instance, whole_number
from moesaic.dispatch.agreement import agree
from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.exchanges import row_bytes
from moesaic.dispatch.peer_access import host, multiprocessors, reasons_against
from moesaic.errors import DispatchError
from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.kernels.peer_window import PeerWindow, window_bytes

OWNER = "open_window"

POLLS_A_SECOND = 1_000_000
"""About how often a program looks for another rank."""


def open_window(
    ranks: Ranks,
    *,
    max_tokens: int,
    hidden_size: int,
    top_k: int,
    dtype: torch.dtype = torch.bfloat16,
    arrangement: Arrangement = AsArrived(),  # noqa: B008 - a frozen value
) -> PeerWindow:
    """Memory for `max_tokens` tokens of each rank, on all ranks of one host; all call it at the same point.

    It holds `2 * N * max_tokens` rows of about `hidden_size * dtype.itemsize` bytes, four bytes an element with an
    arrangement by expert, and lives as long as the window does. A call may hand in fewer tokens, smaller rows and other
    dtypes, as long as they fit.

    Raises FleetError, the same on all ranks, if one of them cannot be reached directly, was given sizes that are none,
    or has no memory left; DispatchError, the same on all ranks, if they are told different sizes or are on other hosts.
    """
    instance(OWNER, "ranks", ranks, Ranks, DispatchError, example="Ranks.world('cuda:0')")
    with _all_or_none(ranks, "what each rank has"):
        tokens, hidden, slots = (
            whole_number(OWNER, name, size, DispatchError)
            for name, size in (("max_tokens", max_tokens), ("hidden_size", hidden_size), ("top_k", top_k))
        )
        instance(OWNER, "dtype", dtype, torch.dtype, DispatchError, example="torch.bfloat16")
        instance(OWNER, "arrangement", arrangement, Arrangement, DispatchError, example="AsArrived()")
        bytes_a_row = row_bytes(hidden, slots, dtype, arrangement)
        reasons = reasons_against(ranks)
        if reasons:
            raise DispatchError("; ".join(reasons))
        plan = ExchangePlan.of(tokens, multiprocessors(ranks.device), ranks.size)
        told = {"host": host(), "max_tokens": str(tokens), "bytes of a row": str(bytes_a_row), "plan": repr(plan)}
    agree(ranks, told, owner=OWNER)
    return _opened(ranks, tokens, bytes_a_row, plan)


def _all_or_none(ranks: Ranks, step: str) -> AbstractContextManager[None]:
    return all_or_none(ranks, f"{OWNER}, {step}", "no rank has a window")


def _opened(ranks: Ranks, max_tokens: int, bytes_a_row: int, plan: ExchangePlan) -> PeerWindow:
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

    device = torch.device(ranks.device)
    with _all_or_none(ranks, "room for the rows"), torch.cuda.device(device):
        size = window_bytes(ranks.size, max_tokens, bytes_a_row, plan)
        memory = symmetric.empty(size, dtype=torch.uint8, device=device).zero_()
        torch.cuda.synchronize()  # nobody may signal before the flags are zero
    # A rendezvous waits for all ranks, so none may come to it that has no memory to show.
    with _all_or_none(ranks, "mapping the rows of others"), torch.cuda.device(device):
        handle = symmetric.rendezvous(memory, ranks.group)
    blocks = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)
    # Newer releases of torch cut the tensor out of a block, which need not be at one place on all ranks.
    inside = ranks.all_gather(memory.data_ptr() - blocks[ranks.rank], f"{OWNER}, places in memory")
    sizes = (max_tokens, bytes_a_row, int(ranks.timeout * POLLS_A_SECOND))
    return PeerWindow.over(memory, blocks + inside, ranks.rank, sizes, plan, handle)
