"""QuantizationArgs of compressed-tensors, which describe weights or inputs, as a format and back."""

from __future__ import annotations

from typing import Any

from moesaic.checkpoints.methods.settings import Settings
from moesaic.errors import CheckpointError
from moesaic.quant import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, Format, PerBlock, PerGroup, PerRow, PerTensor, Plain

STRATEGIES = ("tensor", "channel", "token", "group", "tensor_group", "block")


def format_of(  # noqa: PLR0911 - one return for each format
    settings: Settings | None, *, stored_as: str = ""
) -> Format:
    """The format that the arguments describe; Plain for None. `stored_as` is the name of a compression format."""
    if settings is None:
        return Plain()
    kind, bits = settings.option("type", ("int", "float"), "int"), settings.number("num_bits", 8)
    group = settings.number("group_size", None, also=(-1,))
    inferred = "tensor" if group is None else "channel" if group == -1 else "group"
    strategy = settings.option("strategy", (*STRATEGIES, None), None) or inferred
    microscaled = "uint8" in str(settings.fields.get("scale_dtype")) or stored_as.startswith("mx")
    if (kind, bits, group) == ("float", 4, 16):
        return NVFP4()
    if (kind, bits, group) == ("float", 4, 32):
        return MXFP4()
    if (kind, bits, group) == ("float", 8, 32) and microscaled:
        return MXFP8()
    granularity = _granularity(settings, strategy, group)
    if (kind, bits) == ("float", 8):
        return FP8(granularity)
    symmetric = settings.flag("symmetric", default=True)
    if (kind, bits) == ("int", 8) and symmetric:
        return INT8(granularity)
    if (kind, bits) == ("int", 4) and isinstance(granularity, PerGroup | PerRow):
        return INT4(granularity, zero_point=not symmetric)
    raise CheckpointError(
        f"{settings.path} says {bits} bits of type {kind}, {strategy}, symmetric {symmetric}, but what is read is "
        "float of 8 or 4 bits (4: groups of 16 or 32), symmetric int of 8 bits, int of 4 bits for a channel or group"
    )


def arguments(stored: Format) -> dict[str, Any] | None:
    """The opposite of `format_of`. Dtypes of scales are not part of it."""
    match stored:
        case Plain():
            return None
        case NVFP4():
            found = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        case MXFP4() | MXFP8():
            bits = 4 if stored == MXFP4() else 8
            scale = {"scale_dtype": "torch.uint8"}
            found = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, **scale}
        case FP8():
            found = {"num_bits": 8, "type": "float", **_strategy(stored.granularity)}
        case INT8() | INT4():
            bits = 8 if isinstance(stored, INT8) else 4
            found = {"num_bits": bits, "type": "int", **_strategy(stored.granularity)}
        case _:
            raise CheckpointError(f"compressed-tensors has no name for {stored!r}")
    return {**found, "symmetric": not (isinstance(stored, INT4) and stored.zero_point), "dynamic": False}


def _granularity(settings: Settings, strategy: str, group: int | None) -> PerTensor | PerRow | PerGroup | PerBlock:
    if strategy == "tensor":
        return PerTensor()
    if strategy in {"channel", "token"}:
        return PerRow()
    if strategy == "block":
        block = settings.fields.get("block_structure")
        sides = [side for side in block if isinstance(side, int)] if isinstance(block, list | tuple) else []
        if len(sides) != 2:
            raise settings.fault("block_structure", "two whole numbers")
        return PerBlock(*sides)
    if group is None or group < 1:
        raise settings.fault("group_size", "a whole number above zero")
    return PerGroup(group)


def _strategy(granularity: object) -> dict[str, Any]:
    match granularity:
        case PerTensor():
            return {"strategy": "tensor"}
        case PerRow():
            return {"strategy": "channel"}
        case PerGroup(columns=columns):
            return {"strategy": "group", "group_size": columns}
        case PerBlock(rows=rows, columns=columns):
            return {"strategy": "block", "block_structure": [rows, columns]}
        case _:
            raise CheckpointError(f"compressed-tensors has no name for {granularity!r}")
