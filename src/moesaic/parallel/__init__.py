"""One layer over several ranks, from its checkpoint to another placement: what needs the layer and the ranks.

`load_experts` reads and binds the experts that a placement gives to this rank; `rebalance` moves them to another one.
"""

from moesaic.parallel.loading import load_experts as load_experts
from moesaic.parallel.rebalancing import rebalance as rebalance
