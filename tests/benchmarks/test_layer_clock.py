"""How calls are captured and timed: on a stand-in for CUDA, which says what was done to it, and on the host."""

import gc
from types import SimpleNamespace

import pytest
import torch
from layers.clock import GraphClock, HostClock, host_microseconds, in_rounds


class Device:
    """`log` of what happens in turn; a replay takes as many milliseconds as its graph has calls."""

    def __init__(self):
        self.log, self.now, self.capturing = [], 0.0, False

    def call(self, name):
        def run():
            self.log.append(f"{'capture' if self.capturing else 'run'} {name}")

        return run


@pytest.fixture
def device(monkeypatch):
    there = Device()

    class Graph:
        def capture_begin(self):
            assert not there.capturing
            there.capturing, self.start = True, len(there.log)

        def capture_end(self):
            there.capturing = False
            self.calls = there.log[self.start :]

        def replay(self):
            there.log.append("replay")
            there.now += len(self.calls)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = there.now

        def elapsed_time(self, end):
            return end.at - self.at

    class Streaming:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            there.log.append(f"on {self.stream}")

        def __exit__(self, *_):
            there.log.append("off")

    fake = SimpleNamespace(
        CUDAGraph=Graph,
        Event=Event,
        Stream=lambda: "side",
        stream=Streaming,
        synchronize=lambda: there.log.append("wait"),
        empty_cache=lambda: there.log.append("release"),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return there


def test_calls_are_run_then_captured_then_replayed_once(device):
    run = GraphClock("side").captured([device.call("a"), device.call("b")])
    before = ["run a", "run b", "wait", "on side", "run a", "run b", "wait"]
    assert device.log == [*before, "capture a", "capture b", "off", "wait", "replay", "wait"]
    assert GraphClock("side").microseconds(run) == 2000.0


def test_a_call_that_cannot_be_captured_leaves_no_capture_behind(device):
    def call():
        if device.capturing:
            raise RuntimeError("operation not permitted")

    with pytest.raises(RuntimeError, match="not permitted"):
        GraphClock("side").captured([call])
    assert not device.capturing
    assert device.log[-1] == "off"
    assert gc.isenabled()


def test_rounds_run_everybody_once_each_in_changing_order():
    clock, log = HostClock(), []
    runs = {name: lambda name=name: log.append(name) for name in "abcd"}
    times = in_rounds(clock, runs, calls=2, rounds=20)
    rounds = [log[i : i + 4] for i in range(0, 80, 4)]
    assert all(sorted(turn) == ["a", "b", "c", "d"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 4
    assert all(len(values) == 20 and values == sorted(values) for values in times.values())


def test_microseconds_are_those_of_one_call(monkeypatch):
    clock = HostClock()
    monkeypatch.setattr(clock, "microseconds", lambda run: 12.0, raising=False)
    assert in_rounds(clock, {"a": lambda: None}, calls=4, rounds=3) == {"a": [3.0, 3.0, 3.0]}
    calls = []
    assert host_microseconds(HostClock(), lambda: calls.append(None), calls=7) > 0
    assert len(calls) == 7
