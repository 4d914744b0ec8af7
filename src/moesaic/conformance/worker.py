"""Worker: jobs in a process of their own, so that a call which hangs or dies costs one job and not the run."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, final

from typing_extensions import override

from moesaic.conformance.execution import Execution, InProcess, Job
from moesaic.conformance.importing import Telling
from moesaic.conformance.outcome import Outcome, Status
from moesaic.conformance.printable import printable
from moesaic.conformance.without_interrupts import without_interrupts
from moesaic.errors import BackendError

START_SECONDS = 120.0
"""Given to a new process to import torch, 3 seconds on an idle laptop, and then to import the backend's module."""

BEGUN = "begun"
"""What a process says when it has read a job, and begins with it."""

LONGEST = 1e6
"""Seconds, 11 days: the longest limit; what waits for a pipe counts milliseconds in 32 bits."""

PRINTED_LINES = 4
"""Of what a process printed before it died; twice as many of the traceback that Python prints then."""


@final
@dataclass(frozen=True)
class Answer:
    """The outcome of the job of that number."""

    number: int
    outcome: Outcome


@final
class Worker(Execution):
    """Sends each job to a second process; replaces it when it dies, or answers nothing for `limit` seconds.

    Imports do not count: neither that of the backend's module, before a job begins, nor those of a first call, of a
    compiler for instance; what is compiled then does. Use it as a context manager. The backend must be picklable: a
    class at the top of a module that can be imported.
    """

    def __init__(self, limit: float = 120.0) -> None:
        if not 0 < limit <= LONGEST:  # NaN is refused too
            raise BackendError(f"Worker.limit is {limit}, but it needs seconds above 0, at most {LONGEST:g}")
        self.limit = limit
        self._process: SpawnProcess | None = None
        self._printed: Path | None = None
        self._number = 0
        self._pipe: Any = None  # a Connection, on Windows a PipeConnection

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(at_once=kind is not None)

    @override
    def run(self, job: Job) -> Outcome:
        self._number += 1
        try:
            sent = pickle.dumps((self._number, job))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise BackendError(
                f"the backend {job.backend.name} cannot be sent to a process of its own ({fault}): define its class at "
                "the top of a module"
            ) from fault
        pipe = self._started()
        try:
            pipe.send_bytes(sent)
            allowed = max(START_SECONDS, self.limit)  # for the import of the backend's module
            while pipe.poll(allowed):
                answer = pipe.recv()
                # A process that the backend forked may have answered an earlier job once more.
                if isinstance(answer, Answer) and answer.number == self._number:
                    return answer.outcome
                allowed = self.limit  # from now on, and again after each module that is imported
            self._stop()
            return Outcome(job.check.name, job.case, Status.HUNG, f"no answer within {allowed:g} seconds")
        except (EOFError, OSError):
            return Outcome(job.check.name, job.case, Status.CRASHED, self._stop())

    def _started(self) -> Any:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            mine, theirs = context.Pipe()
            handle, name = tempfile.mkstemp(prefix="moesaic-conform-", suffix=".log")
            os.close(handle)
            self._printed = Path(name)
            self._process = context.Process(target=serve, args=(theirs, name), daemon=True)
            with without_interrupts():
                self._process.start()
            theirs.close()
            self._pipe = mine
            try:
                started = mine.poll(START_SECONDS) and mine.recv()
            except EOFError:
                started = False
            if not started:
                how = self._stop()
                raise BackendError(f"the process for jobs did not start within {START_SECONDS:g} seconds: {how}")
        return self._pipe

    def _stop(self, *, at_once: bool = False) -> str:
        """End the process, `at_once` or after it had a second for it, and say in words how it ended."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "the process was not running"
        if not at_once:
            process.join(timeout=1.0)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        how = f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"the process exited with {code}"
        said = self._last_lines()
        return f"{how}; it printed: {said}" if said else how

    def _last_lines(self) -> str:
        """The end of what the process printed, in one line; torch's own marks of the profiler are left out."""
        if self._printed is None:
            return ""
        lines = self._printed.read_text(encoding="utf-8", errors="replace").splitlines()
        self._printed.unlink()
        self._printed = None
        said = [printable(line.strip()) for line in lines if not line.startswith("USDT:")]
        fatal = next((i for i, line in enumerate(said) if line.startswith("Fatal Python error")), len(said))
        return " | ".join(said[max(0, fatal - PRINTED_LINES) : fatal + 2 * PRINTED_LINES])


def serve(pipe: Any, printed: str) -> None:
    """Answer jobs until the other end closes. What backends print goes to the file `printed`, not among the answers."""
    with Path(printed).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    runner, telling, owner = InProcess(), Telling(pipe), os.getpid()
    telling.send("ready")
    while True:
        try:
            number, job = pickle.loads(pipe.recv_bytes())  # noqa: S301  (from the parent process)
        except EOFError:
            return
        telling.send(BEGUN)
        with telling.at_imports():
            outcome = runner.run(job)
        if os.getpid() != owner:  # a process that the backend forked came back from its call
            os._exit(0)
        telling.send(Answer(number, outcome))
