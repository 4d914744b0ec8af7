"""Where rows are computed: one class per way to bring them to their experts and back."""

from moesaic.dispatch.base import Dispatcher as Dispatcher
from moesaic.dispatch.fleet import Fleet as Fleet
from moesaic.dispatch.fleet import OneRank as OneRank
from moesaic.dispatch.local import Local as Local
from moesaic.dispatch.loopback import Loopback as Loopback
from moesaic.dispatch.loopback import LoopbackReceipt as LoopbackReceipt
from moesaic.dispatch.loopback_rank import LoopbackRank as LoopbackRank
from moesaic.dispatch.loopback_rank import Peer as Peer
from moesaic.dispatch.row_transports import Expanded as Expanded
from moesaic.dispatch.row_transports import Slabs as Slabs
from moesaic.dispatch.token_transports import Deduplicated as Deduplicated
from moesaic.dispatch.token_transports import Gathered as Gathered
from moesaic.dispatch.token_transports import RankMajor as RankMajor
from moesaic.dispatch.transport import Transport as Transport
