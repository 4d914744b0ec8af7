"""Wrong activations whose constants are ignored, mixed up between experts, or not one value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import Activation, GeGLU, SwiGLU
from moesaic.activations.base import At, Constant, constant
from moesaic.conformance.mutants.activations import of_activation
from moesaic.conformance.mutants.base import Mutant

GPT_OSS = SwiGLU(alpha=1.702, beta=1.0, limit=7.0)


@dataclass(frozen=True)
class Clamped(Activation):
    """SwiGLU with the constants that a mutant reads."""

    gated: ClassVar[bool] = True
    alpha: Constant = constant(1.702)
    beta: Constant = constant(1.0)
    limit: Constant | None = constant(7.0, optional=True, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return SwiGLU(*self.read()).formula(rows, at)

    @abstractmethod
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        """alpha, beta and limit as they are used."""


@final
@dataclass(frozen=True)
class AlphaDropped(Clamped):
    """alpha is 1.702 whatever is asked for."""

    @override
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        return 1.702, self.beta, self.limit


@final
@dataclass(frozen=True)
class BetaDropped(Clamped):
    """beta is 1 whatever is asked for."""

    @override
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        return self.alpha, 1.0, self.limit


@final
@dataclass(frozen=True)
class LimitDropped(Clamped):
    """The limit is 7 whatever is asked for."""

    @override
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        return self.alpha, self.beta, 7.0


@final
@dataclass(frozen=True)
class FormIgnored(Activation):
    """GeGLU that has a name for the form of GELU and does not read it."""

    gated: ClassVar[bool] = True
    approximate: Literal["none", "tanh"] = "none"

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return GeGLU().formula(rows, at)


@final
@dataclass(frozen=True)
class ConstantsOfExpertZero(Clamped):
    """Every row is computed with the constants of expert 0."""

    @override
    def __call__(self, rows: Tensor, expert_ids: Tensor | None = None) -> Tensor:
        return super().__call__(rows, None if expert_ids is None else torch.zeros_like(expert_ids))

    @override
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        return self.alpha, self.beta, self.limit


@final
@dataclass(frozen=True)
class SelectsByPlace(Clamped):
    """`select` takes the first experts instead of those that were named."""

    @override
    def select(self, expert_ids: Sequence[int]) -> Activation:
        return super().select(range(len(expert_ids)))

    @override
    def read(self) -> tuple[Constant, Constant, Constant | None]:
        return self.alpha, self.beta, self.limit


@final
@dataclass(frozen=True)
class NumbersAsTheyCome(Activation):
    """Constants are kept as they were given, so 1 and 1.0 have two reprs."""

    gated: ClassVar[bool] = True
    alpha: Any = field(default=1.702, metadata={"constant": True, "optional": False, "positive": False})

    @override
    def __post_init__(self) -> None:
        given = self.alpha
        super().__post_init__()  # which refuses what is no number
        kept = self.alpha if isinstance(given, tuple) else given
        object.__setattr__(self, "alpha", kept)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return SwiGLU(self.alpha, 1.0, 7.0).formula(rows, at)


@final
@dataclass(frozen=True)
class NanConstantTaken(Activation):
    """A constant that is NaN, infinite or a bool is taken."""

    gated: ClassVar[bool] = True
    alpha: Any = field(default=1.702, metadata={"constant": True, "optional": False, "positive": False})

    @override
    def __post_init__(self) -> None:
        if isinstance(self.alpha, int | float):
            object.__setattr__(self, "alpha", float(self.alpha))
        else:
            super().__post_init__()

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return SwiGLU(self.alpha, 1.0, 7.0).formula(rows, at)


WRONG_CONSTANTS: tuple[Mutant, ...] = (
    of_activation("F03_alpha_dropped_from_the_activation", AlphaDropped(), "constants_matter", GPT_OSS),
    of_activation("F03_beta_dropped_from_the_activation", BetaDropped(), "constants_matter", GPT_OSS),
    of_activation("F04_limit_hard_coded", LimitDropped(), "constants_matter", GPT_OSS),
    of_activation("F13_name_of_the_form_ignored", FormIgnored(), "constants_matter", GeGLU()),
    of_activation("F46_constants_of_expert_0", ConstantsOfExpertZero(), "per_expert", GPT_OSS),
    of_activation("F88_constants_selected_by_place", SelectsByPlace(), "per_expert", GPT_OSS),
    of_activation("F75_numbers_as_they_come", NumbersAsTheyCome(), "one_value", GPT_OSS),
    of_activation("F75_nan_constant_taken", NanConstantTaken(), "refusals", GPT_OSS),
)
