"""Checkpoints: the experts of a layer straight from safetensors files, in the format in which they are stored.

>>> import tempfile, torch
>>> from moesaic import ExpertWeights, FP8, PerBlock
>>> from moesaic.checkpoints import Checkpoint, FineGrainedFP8, read_experts, write_experts
>>> weights = ExpertWeights.plain(torch.randn(4, 384, 64), torch.randn(4, 64, 192)).quantize(FP8(PerBlock()))
>>> directory = tempfile.mkdtemp() + "/tiny"
>>> write_experts(directory, {1: weights, 2: weights}, FineGrainedFP8(), config={"num_experts": 4})
>>> Checkpoint(directory).method
FineGrainedFP8(block=(128, 128), ue8m0=False, fp4=False, static=False, scale_name='weight_scale_inv')
>>> read_experts(directory, layer=2, experts=range(2, 4))  # one of two ranks
ExpertWeights(gate_up=(2, 384, 64), down=(2, 64, 192), FP8(granularity=PerBlock(rows=128, columns=128), ...
"""

from moesaic.checkpoints.checkpoint import Checkpoint as Checkpoint
from moesaic.checkpoints.checkpoint import read_experts as read_experts
from moesaic.checkpoints.conventions import Convention as Convention
from moesaic.checkpoints.layers import ExpertLayer as ExpertLayer
from moesaic.checkpoints.methods import AWQ as AWQ
from moesaic.checkpoints.methods import GPTQ as GPTQ
from moesaic.checkpoints.methods import METHODS as METHODS
from moesaic.checkpoints.methods import CompressedTensors as CompressedTensors
from moesaic.checkpoints.methods import FineGrainedFP8 as FineGrainedFP8
from moesaic.checkpoints.methods import GptOssMXFP4 as GptOssMXFP4
from moesaic.checkpoints.methods import Method as Method
from moesaic.checkpoints.methods import ModelOpt as ModelOpt
from moesaic.checkpoints.methods import Unquantized as Unquantized
from moesaic.checkpoints.naming import NAMINGS as NAMINGS
from moesaic.checkpoints.naming import Flattened as Flattened
from moesaic.checkpoints.naming import Naming as Naming
from moesaic.checkpoints.naming import PerExpert as PerExpert
from moesaic.checkpoints.naming import Stacked as Stacked
from moesaic.checkpoints.quantizing import quantize_checkpoint as quantize_checkpoint
from moesaic.checkpoints.recipes import RECIPES as RECIPES
from moesaic.checkpoints.recipes import Recipe as Recipe
from moesaic.checkpoints.recipes import recipe_named as recipe_named
from moesaic.checkpoints.writing import write_experts as write_experts
