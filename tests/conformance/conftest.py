"""The kit runs as its users run it: without run-time type checks, which make it eight times slower, on one thread."""

import pytest
import torch

from tests.unchecked import unchecked


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Cases are so small that a second thread costs more than it brings, ten times where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with unchecked():
        yield
    torch.set_num_threads(threads)
