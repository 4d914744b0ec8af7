"""A Triton kernel that is launched as it was compiled before, where its arguments are of the same kind.

At every launch Triton binds arguments to names, derives what it specializes on, reads its settings and calls its hooks,
also where there are none: 18 to 24 us on the host of an H200 (docs/performance/hopper.md). What was compiled depends on
the constants and on little of the other arguments, which is looked up here in one dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, final

from torch import Tensor
from triton import knobs
from triton.compiler.compiler import CompiledKernel
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNMENT = 16
"""Bytes of an address, and the factor of an integer, that Triton specializes on."""


DESCRIPTORS = (TensorDescriptor, GluonDescriptor)
"""What a kernel takes for a tensor of which it copies boxes by TMA."""

RECORDER: ContextVar[Callable[..., None] | None] = ContextVar("RECORDER", default=None)
"""Who is told of each launch in this thread: `Calls.launched` of `launch_recording.py`, or nobody."""


@final
class Known(NamedTuple):
    """What a launch needs of a kernel that is loaded on the current device."""

    compiled: CompiledKernel
    run: Callable[..., object]
    function: object
    metadata: object
    stream: Callable[[int], int]
    constants: tuple[object, ...]


@final
class DirectLaunch:
    """`@DirectLaunch` above `@triton.jit`: `kernel[grid](*arguments, **constants)` as before, for less of the host.

    What Triton did not compile in this process, and arguments other than tensors, descriptors of them, numbers, None
    and tuples of these go through Triton, as do all where it interprets. Settings of Triton that are changed after a
    kernel's first launch do not reach it, but for the hooks around launches.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.fn = kernel.fn
        self._known: dict[Hashable, dict[int, Known]] = {}
        """Kind of arguments and constants -> device -> what is loaded there."""

    @property
    def compiles(self) -> bool:
        """Whether Triton compiles the kernel; it does not in its interpreter."""
        return isinstance(self.kernel, JITFunction)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        """Launch on the current stream of the current device, which is that of the tensors: constants go by name."""
        if not isinstance(self.kernel, JITFunction):
            self.kernel[grid](*args, **kwargs)
            return
        try:
            key = (*kinds(args), *kwargs, *kwargs.values())
            loaded = self._known.get(key)
        except TypeError:  # something that has no kind, or no hash
            recorder = RECORDER.get()
            if recorder is not None:
                recorder(self, None, grid, args, kwargs)
            self.kernel[grid](*args, **kwargs)
            return
        device = driver.active.get_current_device() if loaded else -1
        known = loaded.get(device) if loaded else None
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        recorder = RECORDER.get()
        if recorder is not None:
            recorder(self, known, (x, y, z), args, kwargs)
        if known is None:
            self._remember(key, self.kernel[grid](*args, **kwargs), len(args), kwargs)
            return
        compiled, run, function, metadata, stream, constants = known
        if is_watched():
            compiled[(x, y, z)](*args, *constants)
            return
        run(x, y, z, stream(device), function, metadata, None, None, None, *args, *constants)

    def launch_again(
        self,
        known: Known,
        grid: tuple[int, int, int],
        stream: int,
        args: Sequence[Any],
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Launch what is known, on arguments of the same kind; pointers may be numbers.

        `kwargs`: the constants by name, which an error reads from here (`backends/launch_faults.py`).
        """
        _, run, function, metadata, _, constants = known
        run(*grid, stream, function, metadata, None, None, None, *args, *constants)

    def _remember(self, key: Hashable, compiled: Any, given: int, kwargs: dict[str, Any]) -> None:
        """Keep what was launched, unless an argument that is no constant was given by name."""
        rest = self.kernel.params[given:]
        launched = isinstance(compiled, CompiledKernel) and compiled.module is not None
        positional = all(not parameter.is_constexpr for parameter in self.kernel.params[:given])
        if launched and positional and all(parameter.is_constexpr for parameter in rest):
            constants = tuple(kwargs.get(parameter.name, parameter.default) for parameter in rest)
            device, stream = driver.active.get_current_device(), driver.active.get_current_stream
            known = Known(compiled, compiled.run, compiled.function, compiled.packed_metadata, stream, constants)
            self._known.setdefault(key, {})[device] = known


def is_watched() -> bool:
    """Whether somebody asked Triton to be told of launches. Without that its own empty chains cost 2 us."""
    entered, left = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return not (
        (entered is None or (isinstance(entered, knobs.HookChain) and not entered.calls))
        and (left is None or (isinstance(left, knobs.HookChain) and not left.calls))
    )


def kinds(arguments: tuple[Any, ...]) -> list[Hashable]:
    """What Triton specializes arguments on that are no constants. TypeError if that is not known here.

    One entry for each argument, and one more where an address is not aligned: which are.
    """
    found: list[Hashable] = []
    addresses = 0
    for argument in arguments:
        kind = argument.__class__
        if kind is Tensor:
            found.append(argument.dtype)
            addresses |= argument.data_ptr()
        elif kind is int:
            bits = argument.bit_length()
            one = argument == 1
            found.append((one, argument % ALIGNMENT == 0, bits > 63) if one or bits > 31 else argument % ALIGNMENT == 0)
        elif kind is tuple:
            found.append((*kinds(argument),))
        elif kind is float or argument is None:
            found.append(kind)
        elif kind is TensorDescriptor:
            found.append((argument.base.dtype, *argument.block_shape))
        elif kind is GluonDescriptor:
            found.append((argument.base.dtype, argument.layout, *argument.block_shape))
        elif isinstance(argument, Tensor):  # a Parameter
            found.append(argument.dtype)
            addresses |= argument.data_ptr()
        else:
            raise TypeError(f"{kind.__name__} has no kind")
    if addresses % ALIGNMENT:  # of one of them
        found.append((*(a.data_ptr() % ALIGNMENT == 0 for a in arguments if isinstance(a, Tensor)),))
    return found
