"""gather_texts: every rank's text on every rank, for facts and faults."""

from __future__ import annotations

import torch

from moesaic.dispatch.collectives import Ranks


def gather_texts(ranks: Ranks, text: str, step: str, what: str) -> list[str]:
    """The text of each rank, in order; all ranks call this at the same point. Errors name `step` and `what`.

    What UTF-8 cannot hold (a lone surrogate, of a path that is not UTF-8) arrives as its escape on every rank.
    Raises CollectiveError if a rank is not heard from.
    """
    encoded = text.encode(errors="backslashreplace")
    lengths = torch.tensor([len(encoded)], device=ranks.device)
    every = ranks.all_gather(lengths, f"{step}, lengths of the {what}").flatten().tolist()
    if not any(every):  # nobody has anything to say, as after each step that went well
        return [""] * ranks.size
    mine = torch.tensor(list(encoded.ljust(max(every))), dtype=torch.uint8, device=ranks.device)
    gathered = ranks.all_gather(mine, f"{step}, the {what}").tolist()
    return [bytes(row[:length]).decode() for row, length in zip(gathered, every, strict=True)]
