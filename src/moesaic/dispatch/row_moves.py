"""spread and summed: tokens to the rows of their experts, and those rows back into one sum a token.

By one Triton kernel each on a GPU, by torch elsewhere; no value is read on the host. Dimensions: R tokens in the
buffers, K slots, P rows, H hidden size.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def spread(
    tokens: Float[Tensor, "R H"], places: Int[Tensor, "R K"], weights: Float[Tensor, "R K"] | None, size: int
) -> Float[Tensor, "size H"]:
    """Row `places[r, k]` holds token r, times its weight if there are weights; other rows are undefined memory."""
    if tokens.is_cuda:
        from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

        rows = tokens.new_empty(size, tokens.shape[1])
        with torch.cuda.device(tokens.device):
            spread_rows(tokens, places.contiguous(), _dense(weights), places.shape[1], rows)
        return rows
    rows = tokens.new_empty(size + 1, tokens.shape[1])  # the last one takes what has no place
    copies = tokens.unsqueeze(1).expand(-1, places.shape[1], -1)
    if weights is not None:
        copies = (copies * weights.unsqueeze(-1)).to(tokens.dtype)
    rows.index_copy_(0, places.where(places >= 0, size).flatten().long(), copies.flatten(0, 1))
    return rows[:-1]


def summed(
    rows: Float[Tensor, "P H"],
    places: Int[Tensor, "R K"],
    weights: Float[Tensor, "R K"] | None,
    lost: Bool[Tensor, " R"],
) -> Float[Tensor, "R H"]:
    """Of each token the sum of its rows, times their weights if there are weights; NaN where a row was `lost`.

    Added and returned in float32 (float64 for that), slot after slot: whoever adds other ranks' sums rounds.
    """
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    if rows.is_cuda and wide == torch.float32:
        from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415

        output = rows.new_empty(len(places), rows.shape[1], dtype=wide)
        placed = places.clamp(max=0)  # as ids of a single expert: 0 where there is a row, else -1
        with torch.cuda.device(rows.device):
            combine_rows(rows.contiguous(), placed, _dense(weights), places.contiguous(), 1, output)
        return output.masked_fill_(lost.unsqueeze(1), torch.nan)
    output = rows.new_zeros(len(places), rows.shape[1], dtype=wide)
    for slot in range(places.shape[1]):
        place = places[:, slot, None]
        value = rows[place.flatten().clamp(min=0).long()].to(wide)
        if weights is not None:
            value = value * weights[:, slot, None].to(wide)
        output += value.where(place >= 0, 0)
    return output.masked_fill_(lost.unsqueeze(1), torch.nan)


def _dense(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.float().contiguous()
