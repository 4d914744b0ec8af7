"""The same model with its experts run by transformers, eagerly or by grouped_mm, and by moesaic."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from moesaic.backends import Backend

WAYS: tuple[str, ...] = ("eager", "grouped_mm", "moesaic")
"""Who runs the experts: two implementations of transformers, then moesaic."""

ROUNDS = 3


@final
@dataclass(frozen=True, eq=False)
class ExpertsInTurns:
    """One model, one copy of its weights; `way` chooses who runs its experts for a while."""

    model: Any
    backends: Sequence[Backend[Any]]

    @contextmanager
    def way(self, name: str) -> Generator[Any, None, None]:
        """The experts run as `name` says within the block, which gets the PatchReport of moesaic, else None."""
        from moesaic.integrations.transformers import patch, unpatch  # noqa: PLC0415

        if name == "moesaic":
            report = patch(self.model, backends=self.backends)
            try:
                yield report
            finally:
                unpatch(self.model)
        else:
            self.model.set_experts_implementation(name)
            yield None

    def each(self, measure: Callable[[], float]) -> dict[str, float]:
        """`measure()` once for every way."""
        found: dict[str, float] = {}
        for name in WAYS:
            with self.way(name):
                found[name] = measure()
        return found

    def tokens_per_second(self, prompt: Tensor, num_tokens: int, progress: Callable[[], None]) -> dict[str, float]:
        """New tokens a second, greedily, from one prompt: the median of `ROUNDS` turns after one to warm up."""
        taken: dict[str, list[float]] = {name: [] for name in WAYS}
        for turn in range(1 + ROUNDS):
            for name, seconds in taken.items():
                with self.way(name):
                    generate(self.model, prompt, min(num_tokens, 4))
                    if turn:
                        start = time.perf_counter()
                        generate(self.model, prompt, num_tokens)
                        seconds.append(time.perf_counter() - start)
                progress()
        return {name: num_tokens / statistics.median(seconds) for name, seconds in taken.items()}


@torch.no_grad()
def generate(model: Any, prompt: Tensor, num_tokens: int, **sampling: Any) -> list[int]:
    """`num_tokens` ids after `prompt`, exactly; greedy unless `sampling` says otherwise."""
    options: dict[str, Any] = {"do_sample": False, **sampling}
    mask = torch.ones_like(prompt)
    output: Tensor = model.generate(
        prompt, attention_mask=mask, max_new_tokens=num_tokens, min_new_tokens=num_tokens, pad_token_id=0, **options
    )
    if output.is_cuda:
        torch.cuda.synchronize()
    return output[0, prompt.shape[1] :].tolist()
