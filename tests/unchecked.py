"""Run-time type checks off, as for users: wrong types then reach the package's own checks."""

import contextlib

import jaxtyping


@contextlib.contextmanager
def unchecked():
    """The test run checks annotations at run time; inside this context nothing does."""
    jaxtyping.config.update("jaxtyping_disable", value=True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", value=False)
