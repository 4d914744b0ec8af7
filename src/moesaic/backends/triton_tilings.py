"""From a choice to what the Triton kernels take; triton is imported with the kernels, when a first call needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from moesaic.tuning.choices import Choice, Product, Streamed, Vector

if TYPE_CHECKING:
    from moesaic.kernels.streamed_experts import Tiling
    from moesaic.kernels.vector_experts import Strip

Launch: TypeAlias = "tuple[Strip, Strip] | Tiling | Product"
"""What a call launches: `vector_experts`, `streamed_experts` or two of `hopper_product`."""


def launch_of(choice: Choice) -> Launch:
    """What computes by `choice`."""
    match choice:
        case Vector():
            return vector_launch(choice)
        case Streamed():
            return streamed_launch(choice)
        case Product():
            return choice
        case _:
            raise NotImplementedError(f"no kernel computes by {choice!r}")


def vector_launch(choice: Vector) -> tuple[Strip, Strip]:
    """The strips of both products."""
    from moesaic.kernels.vector_experts import Strip  # noqa: PLC0415

    return Strip(*choice.up), Strip(*choice.down)


def streamed_launch(choice: Streamed) -> Tiling:
    """The tiling of both products."""
    from moesaic.kernels.streamed_experts import Blocks, Tiling  # noqa: PLC0415

    up, down = Blocks(*choice.up), Blocks(*choice.down)
    return Tiling(choice.rows, choice.more, up, down, choice.warps, swap=choice.swap, tma=choice.tma)
