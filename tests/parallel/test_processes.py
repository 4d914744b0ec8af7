"""The ground truth of what the tests in threads say: two real processes over gloo."""

import pytest

from tests.rank_processes import two_ranks

pytestmark = pytest.mark.dist


def test_two_processes_record_load_rebalance_and_fail_together(tmp_path):
    ended = two_ranks("tests.parallel.rank_process", tmp_path / "init", tmp_path / "model")
    assert [status for status, *_ in ended] == [0, -9], ended
    done = ["a loaded layer computes and counts what one rank does", "a rebalanced layer is one built anew"]
    first, second = (output.splitlines() for _, output, _ in ended)
    assert first[:3] == [done[0], "a compiled layer counts", done[1]]
    *_, fault, lost = first
    assert fault.startswith("rebalance, chunk 1 of ")
    assert ": rank 1: DispatchError: bytes 0 to " in fault
    assert fault.endswith("; no rank was changed, and the old placement serves on")
    assert second == [*done, fault]
    assert "rank 0 did not hear from all of the ranks 1" in lost
