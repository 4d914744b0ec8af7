"""Peak of what a call allocates, as torch's own allocator reports it."""

import warnings

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call):
    """The most bytes alive at once during `call`, beyond those alive before it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")  # torch 2.11 says so of every use
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = call()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    del result
    return peak
