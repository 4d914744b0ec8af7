"""The package's own backends: every claim that this machine can execute (Reference's in tests/cli/test_conform.py)."""

from moesaic import Cpu, TorchGrouped
from moesaic.conformance import BackendConformance


class TestTorchGrouped(BackendConformance):
    backend = TorchGrouped()
    quick = True
    device = "cpu"


class TestCpu(BackendConformance):
    backend = Cpu()
    quick = True
    device = "cpu"
