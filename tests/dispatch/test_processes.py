"""Real processes over gloo, the ground truth of what the tests in threads say; and ranks that do not answer."""

import os
import subprocess
import sys

import pytest

from tests.rank_processes import LIMIT, ROOT, ended, started

pytestmark = pytest.mark.dist


def run(scenarios, num_ranks, where):
    """Return code, output and last line of the errors of each rank."""
    module, init = "tests.dispatch.rank_process", where / "init"
    found = ended([started(module, scenarios, rank, num_ranks, init) for rank in range(num_ranks)])
    return [(code, output, (errors.strip().splitlines() or [""])[-1]) for code, output, errors in found]


def test_two_processes_conform_and_a_slow_rank_ends_both_with_an_error(tmp_path):
    found = run("differ,conform,slow", 2, tmp_path)
    for rank, (code, output, error) in enumerate(found):
        difference, checks = output.splitlines()
        assert "the ranks of a layer differ in problem.activation.limit: 7.0 on rank 0, but 8.0 on rank 1" in difference
        assert int(checks.removesuffix(" checks passed")) > 30
        step = f"AllGather.combine, the partial sums: rank {rank} did not hear from all of the ranks {1 - rank} "
        assert error.startswith(f"[rank{rank}]: moesaic.errors.CollectiveError: {step}")
        assert "of 3 s allowed" in error
        assert code == 1


def test_three_processes_conform_and_a_killed_rank_ends_the_others_with_an_error(tmp_path):
    found = run("conform,killed", 3, tmp_path)
    assert [code for code, _, _ in found] == [1, -9, 1]
    for rank, others in ((0, "1, 2"), (2, "0, 1")):
        _, output, error = found[rank]
        assert int(output.removesuffix(" checks passed\n")) > 30
        assert error.startswith(f"[rank{rank}]: moesaic.errors.CollectiveError: AllToAll.dispatch, ")
        assert f"rank {rank} did not hear from all of the ranks {others}" in error


def test_the_example_prints_what_one_process_prints():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    example = ["examples/expert_parallel.py", "--bytes", "24"]
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *example]
    alone, spread = (
        subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT,
        )
        for arguments in (example, launched)
    )
    assert alone.stdout.startswith("It was a truth universally acknowledged, that the ")
    assert spread.stdout == alone.stdout
    for rank in (0, 1):  # 4 of the 8 experts of each layer
        assert f"rank {rank} of 2 holds {4 * 4 * 3 * 128 * 128 * 4} bytes of experts\n" in spread.stderr
