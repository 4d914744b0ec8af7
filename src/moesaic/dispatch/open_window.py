"""open_window: memory that the ranks of one host write into directly, over torch's symmetric memory.

Each step is compared between the ranks before the next, so that what one of them lacks is an error on all.
"""

from __future__ import annotations

import torch

from moesaic.checks import instance, whole_number
from moesaic.dispatch.agreement import agree
from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.exchanges import row_bytes
from moesaic.dispatch.peer_access import host, reasons_against
from moesaic.dispatch.texts import gather_texts
from moesaic.errors import DispatchError
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
    dtypes, as long as they fit. Raises DispatchError on every rank, before memory is taken, if one of them cannot be
    reached directly, was given sizes that are none, or was told others than the rest.
    """
    instance(OWNER, "ranks", ranks, Ranks, DispatchError, example="Ranks.world('cuda:0')")
    fault, sizes = "", (0, 0)
    try:
        tokens, hidden, slots = (
            whole_number(OWNER, name, size, DispatchError)
            for name, size in (("max_tokens", max_tokens), ("hidden_size", hidden_size), ("top_k", top_k))
        )
        instance(OWNER, "dtype", dtype, torch.dtype, DispatchError, example="torch.bfloat16")
        instance(OWNER, "arrangement", arrangement, Arrangement, DispatchError, example="AsArrived()")
        sizes = tokens, row_bytes(hidden, slots, dtype, arrangement)
        fault = "; ".join(reasons_against(ranks))
    except DispatchError as error:
        fault = str(error)
    together(ranks, fault)
    told = {"host": host(), "max_tokens": str(sizes[0]), "bytes of a row": str(sizes[1])}
    agree(ranks, told, owner=OWNER)
    return _rendezvous(ranks, *sizes)


def together(ranks: Ranks, fault: str) -> None:
    """Raise the same DispatchError on all ranks if one of them has a fault."""
    faults = gather_texts(ranks, fault, OWNER, "reasons")
    told = [f"rank {rank}: {fault}" for rank, fault in enumerate(faults) if fault]
    if told:
        raise DispatchError(f"{OWNER}: the ranks cannot share memory; " + "; ".join(told))


def _rendezvous(ranks: Ranks, max_tokens: int, bytes_a_row: int) -> PeerWindow:
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

    fault, mapped, device = "", None, torch.device(ranks.device)
    try:
        with torch.cuda.device(device):
            size = window_bytes(ranks.size, max_tokens, bytes_a_row)
            memory = symmetric.empty(size, dtype=torch.uint8, device=device).zero_()
            mapped = memory, symmetric.rendezvous(memory, ranks.group)
            torch.cuda.synchronize()  # nobody may signal before the flags are zero
    except RuntimeError as error:
        fault = str(error)
    together(ranks, fault)
    if mapped is None:
        raise DispatchError(f"{OWNER}: rank {ranks.rank} has no window")
    memory, handle = mapped
    blocks = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)
    # Newer releases of torch cut the tensor out of a block, which need not be at one place on all ranks.
    inside = ranks.all_gather(memory.data_ptr() - blocks[ranks.rank], f"{OWNER}, places in memory")
    sizes = (max_tokens, bytes_a_row, int(ranks.timeout * POLLS_A_SECOND))
    return PeerWindow.over(memory, blocks + inside, ranks.rank, sizes, handle)
