"""Where rows are computed: one class per way to bring them to their experts and back.

`Loopback`, which plays a whole fleet in one process, is imported from `moesaic.dispatch.loopback`: it is for tests.
"""

from moesaic.dispatch.base import Dispatcher as Dispatcher
from moesaic.dispatch.local import Local as Local
