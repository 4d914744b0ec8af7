"""How one matrix is kept as tensors of a checkpoint: one file for each convention."""

from moesaic.checkpoints.conventions.awq import AWQWeight as AWQWeight
from moesaic.checkpoints.conventions.base import Convention as Convention
from moesaic.checkpoints.conventions.gpt_oss import BlockedMXFP4 as BlockedMXFP4
from moesaic.checkpoints.conventions.gptq import GPTQWeight as GPTQWeight
from moesaic.checkpoints.conventions.microscaled import MicroscaledWeight as MicroscaledWeight
from moesaic.checkpoints.conventions.nvfp4 import NVFP4Weight as NVFP4Weight
from moesaic.checkpoints.conventions.packed_int4 import PackedINT4 as PackedINT4
from moesaic.checkpoints.conventions.packed_int8 import PackedINT8 as PackedINT8
from moesaic.checkpoints.conventions.plain import PLAIN_DTYPES as PLAIN_DTYPES
from moesaic.checkpoints.conventions.plain import PlainWeight as PlainWeight
from moesaic.checkpoints.conventions.scaled import ScaledWeight as ScaledWeight
from moesaic.checkpoints.conventions.unpacked_int4 import UnpackedINT4 as UnpackedINT4
