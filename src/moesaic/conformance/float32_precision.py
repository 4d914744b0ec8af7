"""Float32Precision: in what precision torch takes products of float32, in both of the forms in which it can be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

WORDS = ("highest", "high", "medium")
"""What the precision of all products of float32 can be set to."""

UNSET = "none"
"""What a field says that follows the one above it."""


@final
@dataclass(frozen=True)
class Float32Precision:
    """`fields`: what each field `fp32_precision` of `torch.backends` says, the ones that others follow first.

    `word`: that of `torch.get_float32_matmul_precision`; None where it raises, as it does once a field was set to what
    the word does not say (torch 2.13).
    """

    fields: tuple[str, ...]
    word: str | None

    @classmethod
    def now(cls) -> Float32Precision:
        """The settings of this process."""
        try:
            word = torch.get_float32_matmul_precision()
        except RuntimeError:
            word = None
        return cls(tuple(owner.fp32_precision for owner in _owners()), word)

    def put_back(self) -> None:
        """Make the settings those that this value holds."""
        self._put_back_fields()
        # A word that could not be read was one that the fields contradict.
        for word in WORDS if self.word is None else (self.word,):
            if Float32Precision.now() == self:
                return
            torch.set_float32_matmul_precision(word)
            self._put_back_fields()

    def _put_back_fields(self) -> None:
        for owner, before in zip(_owners(), self.fields, strict=True):
            if owner.fp32_precision != before:
                owner.fp32_precision = UNSET  # what a field said may be what it followed
            if owner.fp32_precision != before:
                owner.fp32_precision = before


def _owners() -> tuple[Any, ...]:
    """What has the field: all of torch, the two libraries, their products. Type checkers do not see it."""
    every: Any = torch.backends
    return every, every.cudnn, every.mkldnn, every.cuda.matmul, every.mkldnn.matmul
