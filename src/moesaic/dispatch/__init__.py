"""Where rows are computed: one class per way to bring them to their experts and back.

`AllGather` and `AllToAll` are imported from `moesaic.dispatch.all_gather` and `.all_to_all`, since they load
torch.distributed; `Loopback`, which plays a whole fleet in one process and is for tests, from
`moesaic.dispatch.loopback`.
"""

from moesaic.dispatch.base import Dispatcher as Dispatcher
from moesaic.dispatch.local import Local as Local
