"""What `quantization_config` says: one file for each `quant_method`."""

from moesaic.checkpoints.methods.awq import AWQ as AWQ
from moesaic.checkpoints.methods.base import Method as Method
from moesaic.checkpoints.methods.compressed_tensors import CompressedTensors as CompressedTensors
from moesaic.checkpoints.methods.compressed_tensors import Group as Group
from moesaic.checkpoints.methods.fine_grained_fp8 import FineGrainedFP8 as FineGrainedFP8
from moesaic.checkpoints.methods.gpt_oss import GptOssMXFP4 as GptOssMXFP4
from moesaic.checkpoints.methods.gptq import GPTQ as GPTQ
from moesaic.checkpoints.methods.modelopt import ModelOpt as ModelOpt
from moesaic.checkpoints.methods.settings import Settings as Settings
from moesaic.checkpoints.methods.unquantized import Unquantized as Unquantized

METHODS: tuple[type[Method], ...] = (
    Unquantized,
    FineGrainedFP8,
    GptOssMXFP4,
    CompressedTensors,
    ModelOpt,
    AWQ,
    GPTQ,
)
"""Every method that is read."""


def method_of(settings: Settings) -> Method:
    """The method that `settings` describe. Raises CheckpointError listing those there are, or about one field."""
    for kind in METHODS:
        found = kind.of(settings)
        if found is not None:
            return found
    raise settings.fault("quant_method", "fp8, mxfp8, mxfp4, compressed-tensors, modelopt, awq or gptq")
