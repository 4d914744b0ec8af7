"""Ctrl-C, SIGTERM, and readers that go away: what is known is said, nothing keeps running, no traceback."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from moesaic.cli.interruption import interruptible
from moesaic.conformance import base_case
from tests.conformance import wrong

COMMAND = (sys.executable, "-c", "from moesaic.cli.app import main; main()", "conform")
CASE = repr(base_case(wrong.DECLARED))
HANGS = ("tests.conformance.wrong:Hangs", "cpu", "--device", "cpu", "--case", CASE)


def started(*arguments, **streams):
    """A process in a group of its own, as a shell starts one."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True} | streams
    return subprocess.Popen((*COMMAND, *arguments), **given)  # noqa: S603


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:  # noqa: PTH123
        return [int(child) for child in file.read().split()]


def is_alive(number):
    try:
        with open(f"/proc/{number}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="children are listed there")  # noqa: PTH110
@pytest.mark.parametrize(
    ("number", "whole_group", "form"),
    [(signal.SIGINT, True, ()), (signal.SIGINT, False, ("--json",)), (signal.SIGTERM, False, ("--json",))],
    ids=["Ctrl-C", "SIGINT", "SIGTERM"],
)
def test_what_was_tried_is_said(number, whole_group, form):
    process = started(*HANGS, *form)
    for line in process.stderr:
        if "zero_tokens" in line:  # and the next check hangs
            break
    at_work = children(process)
    assert at_work
    (os.killpg if whole_group else os.kill)(process.pid, number)
    time.sleep(0.02)
    (os.killpg if whole_group else os.kill)(process.pid, number)  # an impatient second time
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    wait_for(lambda: not any(map(is_alive, at_work)), 5.0)
    if form:
        document = json.loads(out)
        assert (document["interrupted"], document["conforms"]) == (True, False)
        assert document["not_begun"] == ["cpu"]
        [report] = document["backends"]
        assert report["interrupted"] is True
        assert report["verdict"].endswith("cells executed; no verdict")
        assert sum(report["counts"].values()) > 0
    else:
        last = out.strip().splitlines()[-1]
        assert last.startswith("interrupted: ")
        assert last.endswith(" cells executed; no verdict; not begun: cpu")


def test_a_reader_who_has_seen_enough_is_no_traceback():
    with started("reference", "--check", "exactly_once", "--quick") as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("stream", [1, 2])
def test_a_stream_that_is_closed_from_the_start_is_no_traceback(stream):
    command = f'exec "$0" -c "from moesaic.cli.app import main; main()" models {stream}>&-'
    done = subprocess.run(("sh", "-c", command, sys.executable), capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if stream == 1 else 0)
    if stream == 1:
        assert done.stderr.startswith("moesaic: stdout is closed")


def stopped_inside():
    with interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        stopped_inside()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
