"""Windows of plain memory, for kernels that run in Triton's interpreter: in one process, or shared by several."""

from dataclasses import dataclass
from typing import Any

import torch

from moesaic.dispatch.fleet import Fleet
from moesaic.dispatch.symmetric_memory import SymmetricMemory
from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.kernels.peer_window import PeerWindow, rows_at, window_bytes

POLLS = 1_000_000
"""Minutes in the interpreter."""


PLAN = ExchangePlan(stripes=2)
"""Three tokens are two steps of the first stripe, and one of the second."""


def poisoned(memory, num_ranks, plan):
    """Flags are zero; rows are NaN in every dtype."""
    memory.fill_(255)[: rows_at(num_ranks, plan)] = 0
    return memory


def in_one_process(num_ranks, max_tokens, row_bytes, plan=PLAN, device="cpu"):
    """The window of each rank, all of them on one device."""
    size = window_bytes(num_ranks, max_tokens, row_bytes, plan)
    memories = [torch.empty(size + 16, dtype=torch.uint8, device=device) for _ in range(num_ranks)]
    memories = [poisoned(m[-m.data_ptr() % 16 :][:size], num_ranks, plan) for m in memories]
    addresses = torch.tensor([m.data_ptr() for m in memories], device=device)
    sizes = (max_tokens, row_bytes, 0)
    return [PeerWindow.over(m, addresses, rank, sizes, plan, memories) for rank, m in enumerate(memories)]


def in_files(where, rank, num_ranks, sizes, plan=PLAN):
    """The window of this process; `sizes`: max_tokens, row_bytes. Other processes map the same files elsewhere."""
    size = window_bytes(num_ranks, *sizes, plan)
    names = [str(where / f"window-{owner}") for owner in range(num_ranks)]
    memories = [torch.from_file(name, shared=True, size=size, dtype=torch.uint8) for name in names]
    poisoned(memories[rank], num_ranks, plan)
    addresses = torch.tensor([m.data_ptr() for m in memories])
    return PeerWindow.over(memories[rank], addresses, rank, (*sizes, POLLS), plan, memories)


@dataclass(frozen=True, kw_only=True)
class Played(Fleet[Any]):
    """All ranks of SymmetricMemory one after the other: all of them send, and then all receive."""

    dispatchers: tuple[SymmetricMemory, ...]

    @property
    def layout(self):
        return self.dispatchers[0].layout

    @property
    def played(self):
        return tuple(range(self.num_ranks))

    @property
    def rounding(self):
        return self.dispatchers[0].rounding

    def dispatch_all(self, calls):
        self.checked(calls)
        exchanges = [d.token_exchange(*call) for d, call in zip(self.dispatchers, calls, strict=True)]
        run(exchanges)
        return [d.arranged(exchange) for d, exchange in zip(self.dispatchers, exchanges, strict=True)]

    def combine_all(self, rows, receipts):
        exchanges = [d.sum_exchange(*own) for d, *own in zip(self.dispatchers, rows, receipts, strict=True)]
        run(exchanges)
        return [exchange.output for exchange in exchanges]


def run(exchanges):
    for exchange in exchanges:
        exchange.run(receive=False)
    for exchange in exchanges:
        exchange.run(send=False)
