"""Settings of the whole test run, and the one fixture that several directories share."""

import pytest
import torch
from hypothesis import settings

from tests.unchecked import unchecked as run_unchecked

settings.register_profile("moesaic", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("moesaic")
torch.set_num_threads(1)  # nearly all tensors are too small for a second one


@pytest.fixture
def unchecked():
    """Without run-time type checks, as users run the package: its own errors are what they see."""
    with run_unchecked():
        yield
