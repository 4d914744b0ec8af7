"""Kernels that compile to nothing, on a CPU: what is launched past Triton is noted, with its arguments."""

import itertools
from types import SimpleNamespace

import torch
from triton.runtime.jit import JITFunction

from moesaic.kernels import (
    combine_rows,
    direct_launch,
    hopper_product,
    order_few,
    order_many,
    spread_rows,
    streamed_experts,
    vector_experts,
)

LAUNCHING = (combine_rows, hopper_product, order_few, order_many, spread_rows, streamed_experts, vector_experts)


class Fake:
    """A compiled kernel."""

    module, function, packed_metadata = object(), "function", "metadata"

    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def run(self, x, y, z, stream, function, metadata, *given):
        assert given[:3] == (None, None, None)
        self.noted.append((self.name, (x, y, z), stream, given[3:]))

    def __getitem__(self, grid):
        return lambda *given: self.noted.append((self.name, grid, "watched", given))


def faked(monkeypatch):
    """What is launched past Triton, as it comes, and the names of what went through it."""
    noted, through = [], []

    def run(self, *args, grid, warmup, **kwargs):
        through.append(self.fn.__name__)
        return Fake(self.fn.__name__, noted)

    for kernel in [
        k for module in LAUNCHING for k in vars(module).values() if isinstance(k, direct_launch.DirectLaunch)
    ]:
        monkeypatch.setattr(kernel, "_known", {})
    device = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 7)
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(direct_launch, "CompiledKernel", Fake)
    monkeypatch.setattr(direct_launch, "driver", SimpleNamespace(active=device))
    card = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    return noted, through


def same_launches(replayed, ordinary, inputs, constants, out):
    """Assert that both are one, but for where their memory lies: inputs, constants and output are what they are."""
    assert [launch[:3] for launch in replayed] == [launch[:3] for launch in ordinary]
    given, expected = out  # of both
    fixed = {storage(t): t for t in (*inputs, *constants)}
    shifts = {storage(expected): (given.data_ptr() - expected.data_ptr(), expected.untyped_storage().nbytes())}
    for (*_, new), (*_, old) in zip(replayed, ordinary, strict=True):
        pairs = [pair for a, b in zip(new, old, strict=True) for pair in flat(a, b)]
        for address, tensor in pairs:
            if storage(tensor) in fixed:
                assert address == tensor.data_ptr()
                continue
            shift = address - tensor.data_ptr()
            known = shifts.setdefault(storage(tensor), (shift, tensor.untyped_storage().nbytes()))
            assert known[0] == shift
            assert shift % 16 == 0
    ranges = sorted((base + shift, base + shift + size) for base, (shift, size) in shifts.items())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert shifts[storage(expected)][0] == given.data_ptr() - expected.data_ptr()


def flat(new, old):
    """(address, tensor) of every tensor in an argument; all else has to be equal."""
    if isinstance(old, torch.Tensor):
        yield (new if isinstance(new, int) else new.data_ptr()), old
    elif isinstance(old, tuple):
        for a, b in zip(new, old, strict=True):
            yield from flat(a, b)
    elif isinstance(old, direct_launch.DESCRIPTORS):
        assert new.__class__ is old.__class__
        assert {k: v for k, v in vars(new).items() if k != "base"} == {
            k: v for k, v in vars(old).items() if k != "base"
        }
        yield new.base.data_ptr(), old.base
    else:
        assert new is old or new == old


def storage(tensor):
    return tensor.untyped_storage().data_ptr()
