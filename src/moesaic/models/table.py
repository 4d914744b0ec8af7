"""MODELS: every published configuration that moesaic knows, and `known_model` to find one by its name."""

from __future__ import annotations

from difflib import get_close_matches

from moesaic.errors import ModelError
from moesaic.models.known_model import KnownModel
from moesaic.models.sigmoid_routed import SIGMOID_ROUTED
from moesaic.models.softmax_routed import SOFTMAX_ROUTED

MODELS: tuple[KnownModel, ...] = tuple(sorted((*SOFTMAX_ROUTED, *SIGMOID_ROUTED), key=lambda model: model.name))
"""Every model whose layer is fully published, by name."""

UNSIZED: tuple[tuple[str, str], ...] = (
    (
        "muse-spark",
        (
            "256 experts of intermediate size 4096, 8 for a token, SwiGLU, a norm of each expert's output, sigmoid "
            "router with a correction bias; the width of the latent space that the experts see is not published"
        ),
    ),
)
"""Models with a layer that cannot be a `Problem`, because a dimension is not published, and what is known of them."""


def known_model(name: str) -> KnownModel:
    """The model of that name, in any case; raises ModelError with the closest names there are.

    >>> known_model("Mixtral-8x7B").problem.intermediate_size
    14336
    """
    wanted = name.lower()
    for model in MODELS:
        if wanted in (model.name, *model.same_layer):
            return model
    for unsized, known in UNSIZED:
        if wanted == unsized:
            raise ModelError(f"{unsized} has no problem: {known}; state the missing size in a Problem of your own")
    names = [known for model in MODELS for known in (model.name, *model.same_layer)]
    close = get_close_matches(wanted, names, n=3, cutoff=0.4)
    hint = f"close are {', '.join(close)}; " if close else ""
    raise ModelError(f"no model is known as {name!r}; {hint}`moesaic models` lists all {len(names)}")
