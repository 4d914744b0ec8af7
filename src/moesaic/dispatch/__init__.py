"""Where rows are computed: one class per way to bring them to their experts and back."""

from moesaic.dispatch.base import Dispatcher as Dispatcher
from moesaic.dispatch.local import Local as Local
