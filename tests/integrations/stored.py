"""Quantized checkpoints of tiny models, and twins: the same values as plain weights, which transformers itself loads.

The values of a twin come from the bytes of the checkpoint by `tests/checkpoints/raw.py`, with no line of the package.
"""

import importlib
import json
import re
from functools import partial

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from moesaic import FP8, PerBlock
from moesaic.checkpoints import Checkpoint, FineGrainedFP8, Recipe, quantize_checkpoint
from tests.checkpoints import raw
from tests.checkpoints.editing import configure
from tests.integrations.families import FAMILIES, tiny

PLAIN = {"BF16", "F16", "F32", "F64"}
CODES = {"F8_E4M3", "F8_E8M0", "I8", "U8", "I32"}
"""Dtypes of files; what has neither is an integer of the model itself, or the shape beside codes."""

DENSE = r"\.(q_proj|o_proj|q_a_proj|wq_a|wo_b|shared_experts?\.\w+|mlp\.(gate|up|down)_proj)$|^lm_head$"
"""Matrices beside the experts that quantized checkpoints keep in few bits too."""

V4_DENSE = FineGrainedFP8(ue8m0=True, scale_name="scale"), FP8(PerBlock(), scale=torch.float8_e8m0fnu)
V4_READ = partial(raw.scaled, tile=(128, 128), scale="scale")
"""Of DeepSeek-V4, whose experts alone are in 4 bits."""


def kind_of(family):
    """The class of the model that is tested."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return vars(module)[FAMILIES[family][0]]


def quantized(family, case, directory, *, dense=None, **sizes):
    """Write `directory/plain`, and `directory/quantized`, which is returned: experts as `case` says.

    Matrices whose names match the pattern `dense` are quantized too.
    """
    tiny(family, **sizes).save_pretrained(directory / "plain")
    recipe = Recipe(case.name, case.stored, case.method)
    quantize_checkpoint(Checkpoint(directory / "plain"), directory / "quantized", recipe)
    if dense:
        _quantize_dense(directory / "quantized", case, dense)
    return directory / "quantized"


def change(directory, edit):
    """Call `edit` with all tensors of the checkpoint, then write them as one file."""
    tensors = {}
    for path in directory.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)
    edit(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})


def with_plain_layer(directory, plain, prefix):
    """Give the tensors that begin with `prefix` their values in the checkpoint `plain` again."""
    (source,) = plain.glob("*.safetensors")

    def edit(tensors):
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]
        tensors.update({name: tensor for name, tensor in load_file(source).items() if name.startswith(prefix)})

    change(directory, edit)


def _quantize_dense(directory, case, pattern):
    method, stored = V4_DENSE if case.name == "deepseek-v4-fp4" else (case.method, case.stored)

    def edit(tensors):
        for name in [name for name in tensors if re.search(pattern, name.removesuffix(".weight"))]:
            stem = name.removesuffix(".weight")
            if tensors[name].ndim == 2 and ".experts." not in name:
                kept = method.convention(f"quantized.{stem}").write(stored.quantize(tensors.pop(name)))
                tensors.update({f"{stem}.{suffix}": tensor.clone() for suffix, tensor in kept.items()})

    change(directory, edit)
    said = json.loads((directory / "config.json").read_text())["quantization_config"]
    for name in {"ignore", "modules_to_not_convert"} & said.keys():
        said[name] = [module for module in said[name] if not re.search(pattern, module)]
    configure(directory, quantization_config=said)


def twin(family, case, directory):
    """transformers' own model, eager, in float32, with the values that the files of `directory` stand for."""
    plain = {name: torch.from_numpy(values).contiguous() for name, values in _values(case, directory)}
    plain = {name: values.float() if values.is_floating_point() else values for name, values in plain.items()}
    target = directory.parent / "twin"
    target.mkdir()
    save_file(plain, target / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config.pop("quantization_config")
    (target / "config.json").write_text(json.dumps(config))
    return kind_of(family).from_pretrained(target, dtype=torch.float32, experts_implementation="eager").eval()


def _values(case, directory):
    """Every tensor by its plain name, in float64."""
    found = raw.tensors(directory)
    packed = {name.rpartition(".")[0] for name, (dtype, _) in found.items() if dtype in CODES}
    for name, (dtype, array) in found.items():
        stem = name.rpartition(".")[0]
        if stem not in packed or name.endswith("bias"):
            yield name, raw.number(dtype, array) if dtype in PLAIN else array.copy()
            continue
        blocks = re.fullmatch(r"(.*(?:gate_up|down)_proj)_blocks", name)
        if blocks:  # gpt-oss: its plain weights are transposed, its packed ones are not
            kept = {suffix: found[f"{blocks[1]}_{suffix}"] for suffix in ("blocks", "scales")}
            yield blocks[1], np.stack([case.read(_of(kept, expert)).T for expert in range(len(array))])
    for stem in packed:
        if not any(name.startswith(f"{stem}.") and name.endswith("_blocks") for name in found):
            v4_dense = case.name == "deepseek-v4-fp4" and ".experts." not in stem
            yield f"{stem}.weight", (V4_READ if v4_dense else case.read)(lambda suffix, s=stem: found[f"{s}.{suffix}"])


def _of(kept, expert):
    return lambda suffix: (kept[suffix][0], kept[suffix][1][expert])
