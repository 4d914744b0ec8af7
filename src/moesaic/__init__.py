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

from moesaic.activations import ACTIVATIONS as ACTIVATIONS
from moesaic.activations import GELU as GELU
from moesaic.activations import Activation as Activation
from moesaic.activations import GeGLU as GeGLU
from moesaic.activations import Identity as Identity
from moesaic.activations import PowLU as PowLU
from moesaic.activations import ReGLU as ReGLU
from moesaic.activations import ReLU as ReLU
from moesaic.activations import ReLU2 as ReLU2
from moesaic.activations import SiLU as SiLU
from moesaic.activations import SiTU as SiTU
from moesaic.activations import SwiGLU as SwiGLU
from moesaic.activations import SwiGLUStep as SwiGLUStep
from moesaic.backends import BACKENDS as BACKENDS
from moesaic.backends import Accepts as Accepts
from moesaic.backends import Backend as Backend
from moesaic.backends import Capabilities as Capabilities
from moesaic.backends import Cpu as Cpu
from moesaic.backends import Reason as Reason
from moesaic.backends import ReasonCode as ReasonCode
from moesaic.backends import Reference as Reference
from moesaic.backends import Requires as Requires
from moesaic.backends import Target as Target
from moesaic.backends import TorchGrouped as TorchGrouped
from moesaic.batches import Batch as Batch
from moesaic.batches import BatchedBatch as BatchedBatch
from moesaic.batches import GroupedBatch as GroupedBatch
from moesaic.batches import PaddedStandardBatch as PaddedStandardBatch
from moesaic.batches import Routing as Routing
from moesaic.batches import StandardBatch as StandardBatch
from moesaic.dispatch import Dispatcher as Dispatcher
from moesaic.dispatch import Local as Local
from moesaic.errors import MoesaicError as MoesaicError
from moesaic.known_machines import KNOWN_MACHINES as KNOWN_MACHINES
from moesaic.known_machines import known_machine as known_machine
from moesaic.layer import Experts as Experts
from moesaic.layer import MoE as MoE
from moesaic.layer import bind as bind
from moesaic.layouts import BatchedExperts as BatchedExperts
from moesaic.layouts import GroupedContiguous as GroupedContiguous
from moesaic.layouts import Layout as Layout
from moesaic.layouts import PaddedStandard as PaddedStandard
from moesaic.layouts import Standard as Standard
from moesaic.machine import Machine as Machine
from moesaic.output_norm import OutputNorm as OutputNorm
from moesaic.problem import Problem as Problem
from moesaic.quant import UNQUANTIZED as UNQUANTIZED
from moesaic.quant import Format as Format
from moesaic.quant import Plain as Plain
from moesaic.quant import Quantized as Quantized
from moesaic.quant import Scheme as Scheme
from moesaic.resolve import Resolution as Resolution
from moesaic.resolve import Verdict as Verdict
from moesaic.resolve import resolve as resolve
from moesaic.routers.base import Router as Router
from moesaic.weights import ExpertWeights as ExpertWeights
