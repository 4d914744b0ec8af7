"""The modules that a quantized checkpoint keeps plain, said as each method says it, for those who read it elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moesaic.checkpoints.methods import GPTQ, CompressedTensors, Method, ModelOpt


def quantization_config(method: Method, plain: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` of `method` in which the modules `plain` are left out.

    moesaic reads a weight that stands alone as plain and needs no list; others make a quantized module of every one
    that is not listed.
    """
    modules = list(plain)
    if isinstance(method, CompressedTensors):
        return replace(method, ignore=tuple(modules)).to_config() or {}
    said: dict[str, Any] = method.to_config() or {}
    match method:
        case ModelOpt():
            return {**said, "ignore": modules}
        case GPTQ():
            return {**said, "dynamic": {f"-:^{re.escape(module)}$": {} for module in modules}}
        case _:
            return {**said, "modules_to_not_convert": modules}
