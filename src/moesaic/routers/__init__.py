"""Which experts a token goes to, and with what weight: one frozen class per rule."""

from moesaic.routers.base import Router as Router
from moesaic.routers.custom import CustomRouter as CustomRouter
from moesaic.routers.grouped import GroupedSigmoidTopK as GroupedSigmoidTopK
from moesaic.routers.grouped import GroupedSoftmaxTopK as GroupedSoftmaxTopK
from moesaic.routers.hashed import HashedTopK as HashedTopK
from moesaic.routers.padding import deactivate_padding as deactivate_padding
from moesaic.routers.sigmoid import BiasedSigmoidTopK as BiasedSigmoidTopK
from moesaic.routers.sigmoid import SigmoidTopK as SigmoidTopK
from moesaic.routers.softmax import BiasedSoftmaxTopK as BiasedSoftmaxTopK
from moesaic.routers.softmax import ExpertScaledSoftmaxTopK as ExpertScaledSoftmaxTopK
from moesaic.routers.softmax import SoftmaxTopK as SoftmaxTopK
from moesaic.routers.softmax import TopKSoftmax as TopKSoftmax
from moesaic.routers.sparsemixer import SparseMixer as SparseMixer
from moesaic.routers.sqrtsoftplus import SqrtSoftplusTopK as SqrtSoftplusTopK
from moesaic.routers.zero_experts import ZeroExpertTopK as ZeroExpertTopK

ROUTERS: tuple[type[Router], ...] = (
    SoftmaxTopK,
    BiasedSoftmaxTopK,
    ExpertScaledSoftmaxTopK,
    TopKSoftmax,
    SigmoidTopK,
    BiasedSigmoidTopK,
    GroupedSigmoidTopK,
    GroupedSoftmaxTopK,
    SqrtSoftplusTopK,
    HashedTopK,
    ZeroExpertTopK,
    SparseMixer,
    CustomRouter,
)
"""Every router of the package, for tables and tests."""
