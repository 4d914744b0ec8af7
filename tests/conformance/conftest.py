import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Cases are so small that a second thread costs more than it brings, ten times where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
