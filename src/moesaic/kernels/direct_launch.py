"""A Triton kernel that is launched as it was compiled before, where its arguments are of the same kind.

At every launch Triton binds arguments to names, derives what it specializes on, and reads its settings: 18 to 24 us
on the host of an H200, of which the launch itself is 6 to 8 (docs/performance/hopper.md). What was compiled depends on
the constants and on little of the other arguments, which is looked up here in one dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, final

from torch import Tensor
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

ALIGNMENT = 16
"""Bytes of an address, and the factor of an integer, that Triton specializes on."""


@final
class DirectLaunch:
    """`@DirectLaunch` above `@triton.jit`: `kernel[grid](*arguments, **constants)` as before, for less of the host.

    What Triton did not compile in this process, and arguments other than tensors, numbers, tuples of them and None
    (a tensor descriptor, for instance), go through Triton, as do all where it interprets. Settings of Triton that are
    changed after a kernel's first launch do not reach it, but for the hooks around launches.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.fn = kernel.fn
        self._known: dict[Hashable, tuple[CompiledKernel, tuple[object, ...]]] = {}

    @property
    def compiles(self) -> bool:
        """Whether Triton compiles the kernel; it does not in its interpreter."""
        return isinstance(self.kernel, JITFunction)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        """Launch on the current stream of the current device, which is that of the tensors: constants go by name."""
        if not self.compiles:
            self.kernel[grid](*args, **kwargs)
            return
        try:
            key = (*_kinds(args), *kwargs.items())
            known = self._known.get(key)
        except TypeError:  # something that has no kind, or no hash
            self.kernel[grid](*args, **kwargs)
            return
        if known is None:
            self._remember(key, self.kernel[grid](*args, **kwargs), len(args), kwargs)
            return
        compiled, constants = known
        compiled[(*grid, 1, 1)[:3]](*args, *constants)

    def _remember(self, key: Hashable, compiled: Any, given: int, kwargs: dict[str, Any]) -> None:
        """Keep what was launched, unless an argument that is no constant was given by name."""
        rest = self.kernel.params[given:]
        launched = isinstance(compiled, CompiledKernel) and compiled.module is not None
        positional = all(not parameter.is_constexpr for parameter in self.kernel.params[:given])
        if launched and positional and all(parameter.is_constexpr for parameter in rest):
            constants = tuple(kwargs.get(parameter.name, parameter.default) for parameter in rest)
            self._known[key] = compiled, constants


def _kinds(arguments: tuple[Any, ...]) -> list[Hashable]:
    """What Triton specializes arguments on that are no constants. TypeError if that is not known here."""
    kinds: list[Hashable] = []
    for argument in arguments:
        kind = argument.__class__
        if isinstance(argument, Tensor):
            kinds += argument.dtype, argument.data_ptr() % ALIGNMENT == 0, argument.get_device()
        elif kind is int:
            bits = argument.bit_length()
            kinds += argument == 1, argument % ALIGNMENT == 0, bits > 31, bits > 63
        elif kind is tuple:
            kinds.append((*_kinds(argument),))
        elif kind is float or argument is None:
            kinds.append(kind)
        else:
            raise TypeError(f"{kind.__name__} has no kind")
    return kinds
