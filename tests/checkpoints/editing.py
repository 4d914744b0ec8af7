"""Spoil a checkpoint that was written."""

import json

from safetensors.torch import load_file, save_file


def edit(directory, change):
    """Call `change` with all tensors of each file, then write the file (and the index) again."""
    where = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors = load_file(path)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        where |= dict.fromkeys(tensors, path.name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def configure(directory, **changes):
    """Change fields of config.json; None takes one away."""
    path = directory / "config.json"
    found = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def quantization(directory, **changes):
    """Change fields of the quantization_config."""
    found = json.loads((directory / "config.json").read_text())["quantization_config"]
    configure(directory, quantization_config={**found, **changes})
