"""TextCoder: between text and a model's ids, by the checkpoint's tokenizer or byte for byte."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from typing_extensions import override

from moesaic.errors import CheckpointError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class TextCoder(ABC):
    """Encodes bytes of UTF-8 text to ids, and ids to text."""

    @abstractmethod
    def encode(self, text: bytes) -> list[int]:
        """The ids of `text`, without special ones."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, with every character that cannot be printed replaced."""

    @abstractmethod
    def num_bytes(self, ids: list[int]) -> int:
        """How many bytes of text `ids` stand for."""


@final
@dataclass(frozen=True)
class Bytes(TextCoder):
    """An id is a byte."""

    @override
    def encode(self, text: bytes) -> list[int]:
        return list(text)

    @override
    def decode(self, ids: list[int]) -> str:
        return _printable(bytes(ids).decode("utf-8", errors="replace"))

    @override
    def num_bytes(self, ids: list[int]) -> int:
        return len(ids)


@final
@dataclass(frozen=True, eq=False)
class Tokenizer(TextCoder):
    """The tokenizer of the checkpoint."""

    tokenizer: Any

    @override
    def encode(self, text: bytes) -> list[int]:
        return list(self.tokenizer.encode(text.decode("utf-8", errors="ignore"), add_special_tokens=False))

    @override
    def decode(self, ids: list[int]) -> str:
        return _printable(self.tokenizer.decode(ids))

    @override
    def num_bytes(self, ids: list[int]) -> int:
        return len(self.tokenizer.decode(ids).encode())


def text_coder(directory: Path, vocab_size: int, *, trust_remote_code: bool) -> TextCoder:
    """The coder of a checkpoint; raises CheckpointError if it has no tokenizer and does not read bytes."""
    if any((directory / name).is_file() for name in _TOKENIZER_FILES):
        from transformers import AutoTokenizer  # noqa: PLC0415

        try:
            options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
            return Tokenizer(AutoTokenizer.from_pretrained(directory, **options))
        except (OSError, ValueError, KeyError, ImportError) as fault:
            raise CheckpointError(f"the tokenizer in {str(directory)!r} cannot be read: {fault}") from fault
    if vocab_size == 256:
        return Bytes()
    raise CheckpointError(
        f"{str(directory)!r} has {vocab_size} ids but no tokenizer: save it with tokenizer.save_pretrained"
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
