"""Run the experts of a transformers model through moesaic (transformers 5.17 or later).

`patch(model)` takes every layer that it can and reports all of them; `unpatch` gives them back; `load` is a
`from_pretrained` that leaves the experts of a quantized checkpoint in its format; `register` makes
`from_pretrained(..., experts_implementation="moesaic")` work. See docs/transformers.md.
"""

from moesaic.integrations.transformers.expert_parallel import dispatched_plan as dispatched_plan
from moesaic.integrations.transformers.expert_parallel import register_expert_parallel as register_expert_parallel
from moesaic.integrations.transformers.forward import register as register
from moesaic.integrations.transformers.identify import Identified as Identified
from moesaic.integrations.transformers.identify import identify as identify
from moesaic.integrations.transformers.load import load as load
from moesaic.integrations.transformers.patch import patch as patch
from moesaic.integrations.transformers.patch import unpatch as unpatch
from moesaic.integrations.transformers.report import Gap as Gap
from moesaic.integrations.transformers.report import GapCode as GapCode
from moesaic.integrations.transformers.report import LayerReport as LayerReport
from moesaic.integrations.transformers.report import PatchReport as PatchReport
