"""Bundled: a contender whose code comes in a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from layers.contender import Contender
from peers.bundle import Bundle


@dataclass(frozen=True)
class Bundled(Contender):
    """It is missing where its `bundle` is, and of its version."""

    bundle: ClassVar[Bundle]

    @property
    def missing(self) -> str:
        """As the bundle says."""
        return self.bundle.missing

    @property
    def versions(self) -> Mapping[str, str]:
        """As the bundle says."""
        return {self.bundle.package: self.bundle.version()}
