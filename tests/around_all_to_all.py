"""AroundAllToAll: an AllToAll in another's hands, for a test to spoil a part of."""

from dataclasses import dataclass

from moesaic import Dispatcher
from moesaic.dispatch.all_to_all import AllToAll


@dataclass(frozen=True)
class AroundAllToAll(Dispatcher):
    """Everything as `inner` does it."""

    inner: AllToAll
    layout = property(lambda self: self.inner.layout)
    synchronises = True

    def num_experts(self, num_local):
        return self.inner.num_experts(num_local)

    def dispatch(self, hidden_states, routing):
        return self.inner.dispatch(hidden_states, routing)

    def combine(self, rows, receipt):
        return self.inner.combine(rows, receipt)
