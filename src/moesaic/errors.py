"""Every error that moesaic raises on purpose; one message says what is, what was needed and what to change.

MoesaicError
├── ActivationError (ValueError)    a constant of an activation
├── LayoutError (ValueError)        a row layout
├── BatchError (ValueError)         routing or rows that break their layout's contract
├── FormatError (ValueError)        a stored tensor, a format or a scheme
├── ProblemError (ValueError)       a field of a problem
├── MachineError (ValueError)       a machine that is not there or not known
├── ModelError (ValueError)         a model that is not in the table of models
├── WeightsError (ValueError)       expert weights that do not fit their problem
├── RouterError (ValueError)        a router's fields or its logits
├── DispatchError (ValueError)      a dispatcher's, fleet's or placement's fields, or calls that are not its ranks'
├── CollectiveError (RuntimeError)  ranks that did not hear from each other in time
├── FleetError (RuntimeError)       what one rank could not do, so that none of them did it
├── BackendError (ValueError)       a backend whose declaration is incomplete or whose name is not known
│   └── NoBackendError              nobody serves the problem: carries the whole resolution
├── LaunchError (RuntimeError)      a kernel that could not be compiled or launched on its device
├── TuningError (ValueError)        how a backend chooses by size, or a table of measured choices
├── GradientError (RuntimeError)    gradients asked of a backend, or of ranks, that give none
├── ParseError (ValueError)         text that is not the repr of one of moesaic's values
├── CheckpointError (ValueError)    a checkpoint or a shipped file that cannot be read
├── PatchError (ValueError)         a model that could not be patched; it was left as it was
└── Nonconformance (AssertionError) a backend that does not keep its contract, found by the conformance kit
"""

from __future__ import annotations


class MoesaicError(Exception):
    """The root of everything that moesaic raises on purpose."""


class ActivationError(MoesaicError, ValueError):
    """A constant of an activation is missing, of the wrong kind or not finite."""


class LayoutError(MoesaicError, ValueError):
    """A row layout is described wrongly."""


class BatchError(MoesaicError, ValueError):
    """Routing or rows break the contract of their layout."""


class FormatError(MoesaicError, ValueError):
    """A stored tensor, its format or a scheme is wrong."""


class ProblemError(MoesaicError, ValueError):
    """A field of a problem is wrong, or two of them contradict each other."""


class MachineError(MoesaicError, ValueError):
    """A machine is not there, or no known machine has that name."""


class ModelError(MoesaicError, ValueError):
    """No model in the table has that name, or its layer is not fully published."""


class WeightsError(MoesaicError, ValueError):
    """Expert weights do not fit their problem."""


class RouterError(MoesaicError, ValueError):
    """A router's fields, or the logits given to it, are wrong."""


class DispatchError(MoesaicError, ValueError):
    """A dispatcher's, a fleet's or a placement's fields are wrong, or what it was given is not for its ranks."""


class CollectiveError(MoesaicError, RuntimeError):
    """A rank died, failed or was too slow, so that the others did not hear from it."""


class FleetError(MoesaicError, RuntimeError):
    """A rank failed in what all ranks have to do together; it is the same error on all, and nothing was changed."""


class BackendError(MoesaicError, ValueError):
    """A backend's declaration is incomplete, or a backend's name is not known."""


class NoBackendError(BackendError):
    """No backend serves the problem on the machine; the message lists every backend with all its reasons."""


class LaunchError(MoesaicError, RuntimeError):
    """A kernel could not be compiled or launched; what triton or the driver raised is the cause.

    The driver also reports what an earlier kernel of the process did wrong, an illegal access for instance, only when
    the next one is launched.
    """


class TuningError(MoesaicError, ValueError):
    """A choice, a rule of choosing or a table of measured choices is wrong, or nothing can be measured."""


class GradientError(MoesaicError, RuntimeError):
    """Gradients were asked of a backend that computes none, or of ranks that exchange none."""


class ParseError(MoesaicError, ValueError):
    """Text is not the repr of one of moesaic's values."""


class CheckpointError(MoesaicError, ValueError):
    """A checkpoint directory or a shipped file cannot be read."""


class PatchError(MoesaicError, ValueError):
    """A model could not be patched; it was left as it was."""


class Nonconformance(MoesaicError, AssertionError):  # noqa: N818 - a finding, which the kit collects
    """A backend does not keep its contract: `what` was looked at, what was `wanted`, and what was `got`."""

    def __init__(self, what: str, wanted: str, got: str) -> None:
        super().__init__(what, wanted, got)
        self.what, self.wanted, self.got = what, wanted, got

    def __str__(self) -> str:
        return f"{self.what}: needs {self.wanted}, got {self.got}"
