"""gather_texts: every rank's text on every rank, for facts and faults."""

from __future__ import annotations

from collections.abc import Sequence

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


def ranks_named(ranks: Sequence[int]) -> str:
    """Ascending `ranks` for people; three and more in a row by the first and the last.

    >>> ranks_named([3]), ranks_named([0, 1, 4]), ranks_named([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0, 1, 4', 'ranks 0 to 3, 7')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}"
