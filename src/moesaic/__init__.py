"""moesaic: one Mixture-of-Experts layer for PyTorch whose kernels are interchangeable pieces.

Describe the layer, ask what would run it, bind its weights and call it:

>>> import torch
>>> from moesaic import ExpertWeights, Problem, Routing, StandardBatch, SwiGLU, bind
>>> problem = Problem(num_experts=4, top_k=2, hidden_size=64, intermediate_size=32,
...                   activation=SwiGLU(), dtype=torch.float32)
>>> weights = ExpertWeights.plain(torch.randn(4, 64, 64), torch.randn(4, 64, 32))
>>> experts = bind(problem, weights)
>>> routing = Routing(topk_ids=torch.tensor([[0, 3], [2, -1]]), topk_weights=torch.tensor([[0.6, 0.4], [1.0, 0.0]]))
>>> experts(StandardBatch(torch.randn(2, 64), routing)).shape
torch.Size([2, 64])
"""

from moesaic.activations import (
    ACTIVATIONS,
    GELU,
    Activation,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.backends import (
    BACKENDS,
    Accepts,
    Backend,
    Capabilities,
    Cpu,
    CpuJit,
    CpuJitQuantized,
    CpuQuantized,
    HopperGrouped,
    Reason,
    ReasonCode,
    Reference,
    Requires,
    Target,
    TorchGrouped,
    TritonGrouped,
    TritonQuantized,
)
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.dispatch import Dispatcher, Local
from moesaic.errors import MoesaicError
from moesaic.known_machines import KNOWN_MACHINES, known_machine
from moesaic.layer import Experts, MoE, bind
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.output_norm import OutputNorm
from moesaic.problem import Problem
from moesaic.quant import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    SCHEMES,
    UNQUANTIZED,
    Format,
    Granularity,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
    Plain,
    Quantized,
    Scheme,
    StoredTensor,
)
from moesaic.resolve import Resolution, Verdict, resolve
from moesaic.routers.base import Router
from moesaic.weights import ExpertWeights

__all__ = [
    "ACTIVATIONS",
    "BACKENDS",
    "FP8",
    "GELU",
    "INT4",
    "INT8",
    "KNOWN_MACHINES",
    "MXFP4",
    "MXFP8",
    "NVFP4",
    "SCHEMES",
    "UNQUANTIZED",
    "Accepts",
    "Activation",
    "Backend",
    "Batch",
    "BatchedBatch",
    "BatchedExperts",
    "Capabilities",
    "Cpu",
    "CpuJit",
    "CpuJitQuantized",
    "CpuQuantized",
    "Dispatcher",
    "ExpertWeights",
    "Experts",
    "Format",
    "GeGLU",
    "Granularity",
    "GroupedBatch",
    "GroupedContiguous",
    "HopperGrouped",
    "Identity",
    "Layout",
    "Local",
    "Machine",
    "MoE",
    "MoesaicError",
    "OutputNorm",
    "PaddedStandard",
    "PaddedStandardBatch",
    "PerBlock",
    "PerGroup",
    "PerRow",
    "PerTensor",
    "Plain",
    "PowLU",
    "Problem",
    "Quantized",
    "ReGLU",
    "ReLU",
    "ReLU2",
    "Reason",
    "ReasonCode",
    "Reference",
    "Requires",
    "Resolution",
    "Router",
    "Routing",
    "Scheme",
    "SiLU",
    "SiTU",
    "Standard",
    "StandardBatch",
    "StoredTensor",
    "SwiGLU",
    "SwiGLUStep",
    "Target",
    "TorchGrouped",
    "TritonGrouped",
    "TritonQuantized",
    "Verdict",
    "bind",
    "known_machine",
    "resolve",
]
