"""Where rows are computed: one class per way to bring them to their experts and back.

Those of several ranks are imported from modules of their own, since they load torch.distributed: `AllGather`,
`AllToAll`, `PaddedAllToAll`, `LowLatency`, `SymmetricMemory` from `moesaic.dispatch.all_gather` and so on; so is
`Loopback`, which plays a whole fleet in one process and is for tests.
"""

from moesaic.dispatch.base import Dispatcher as Dispatcher
from moesaic.dispatch.local import Local as Local
