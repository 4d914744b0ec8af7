"""The expert layers of published models as problems: real shapes for explaining, timing and tests."""

from moesaic.models.known_model import KnownModel as KnownModel
from moesaic.models.table import MODELS as MODELS
from moesaic.models.table import UNSIZED as UNSIZED
from moesaic.models.table import known_model as known_model
