"""sum_back: each rank's partial sums travel home and are summed there, in float32 and in the order of ranks.

An exchange moves no more bytes than a reduce-scatter would, in the dtype of the rows rather than in float32, and its
sum does not depend on the place of a row or on the number of ranks in a ring. Dimensions: S rows sent by this rank in
dispatch, R rows that it got, T tokens, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.dispatch.collectives import Ranks
from moesaic.errors import BatchError


@final
@dataclass(frozen=True, eq=False)
class SumReceipt:
    """What `combine` needs: rows sent to and got from each rank, the token of each row sent, T, H and the dtype.

    Of the rows sent to one rank no two are of one token.
    """

    sent: tuple[int, ...]
    got: tuple[int, ...]
    token: Int[Tensor, " S"]
    num_tokens: int
    hidden_size: int
    dtype: torch.dtype


def sum_back(ranks: Ranks, rows: Float[Tensor, "R H"], receipt: SumReceipt, *, owner: str) -> Float[Tensor, "T H"]:
    """The output of this rank's tokens; zero for one that was sent nowhere. `rows` are partial sums, in their places.

    Raises BatchError for rows of another batch, CollectiveError if a rank is not heard from.
    """
    wanted = ((sum(receipt.got), receipt.hidden_size), receipt.dtype)
    if (tuple(rows.shape), rows.dtype) != wanted:
        raise BatchError(
            f"the rows are {rows.dtype} of shape {tuple(rows.shape)}, but the receipt is for {wanted[1]} of shape "
            f"{wanted[0]}: give the receipt of the same dispatch, with the rows of its batch"
        )
    as_bytes = rows.contiguous().view(torch.uint8)
    back = ranks.all_to_all(as_bytes, receipt.got, receipt.sent, f"{owner}.combine, the partial sums")
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    output = torch.zeros(receipt.num_tokens, receipt.hidden_size, dtype=wide, device=rows.device)
    partial = back.view(rows.dtype).split(receipt.sent)
    for token, values in zip(receipt.token.split(receipt.sent), partial, strict=True):
        output[token] += values.to(wide)  # one row a token, so no index comes twice
    return output.to(rows.dtype)
