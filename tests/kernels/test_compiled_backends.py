"""What the Triton backends launch is compiled for GPUs that are not there, with two releases of triton."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic import HopperGrouped, TritonGrouped

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv" / "triton-3.6"
KIB = 1024
MOST_SHARED = {80: 99 * KIB, 90: 227 * KIB, 100: 99 * KIB}
"""What a block may have: on sm_90 all that there is, elsewhere as much as the smallest GPUs of the kind have."""


@pytest.fixture(
    scope="module",
    params=[(90, None), (80, "fewer"), (100, "fewer"), (90, "oldest")],
    ids=["sm_90", "sm_80", "sm_100", "sm_90-oldest-triton"],
)
def compiled(request, tmp_path_factory):
    """(capability, what `compiled_backends.py` found of each kernel), by a compiler that remembers nothing."""
    capability, kind = request.param
    oldest = kind == "oldest"
    assert not oldest or OLDEST.exists(), f"there is no {OLDEST}: make {OLDEST.relative_to(ROOT)}/.ready"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*([str(OLDEST)] if oldest else []), str(ROOT), *sys.path]),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.compiled_backends", str(capability), *(["fewer"] if kind else [])]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-3000:]
    found = list(map(json.loads, done.stdout.splitlines()))
    if oldest:
        [needed] = {r.version for b in (HopperGrouped(), TritonGrouped()) for r in b.capabilities.requires}
        assert {fact["triton"] for fact in found} == {".".join(map(str, (*needed, 0)))}
    return capability, found


def said(facts):
    """For a message: the launch, the kernel and what matters."""
    return [(f["launch"], f["kernel"], f["spills"], f["shared_bytes"], f["wgmma"]) for f in facts]


def test_every_kernel_is_compiled(compiled):
    capability, facts = compiled
    everywhere = {"order_few", "count", "scan", "place", "first", "second", "vector_up", "vector_down", "combine"}
    everywhere |= {"up", "down", "round"}
    on_hopper = (
        {"hopper_product", "spread", "coded_product", "nibble_product", "spread_codes", "split_rows", "split_product"}
        if capability == 90
        else set()
    )
    assert {fact["kernel"] for fact in facts} >= everywhere | on_hopper


def test_no_register_is_spilled(compiled):
    _, facts = compiled
    assert said(fact for fact in facts if fact["spills_in_steps"]) == []
    # Where sums are split, what threads without a part in a reduction never read is kept from tile to tile.
    assert said(fact for fact in facts if fact["spills"] and fact["kernel"] != "split_product") == []


def test_few_rows_wait_for_no_scale_and_bring_no_weight_through_shared_memory_twice(compiled):
    capability, facts = compiled
    few = ("stored mxfp4 8", "stored nvfp4 8")  # their scales lie by boxes
    found = [fact for fact in facts if fact["launch"] in few and fact["kernel"] in ("up", "down")]
    oldest = {fact["triton"] for fact in facts} == {"3.6.0"}  # which compiles fewer launches, and none of these
    assert found or (capability == 90 and oldest)
    assert said(fact for fact in found if fact["loads_in_loops"] or fact["exchanges_in_loops"]) == []


def test_shared_memory_suffices(compiled):
    capability, facts = compiled
    assert said(fact for fact in facts if fact["shared_bytes"] > MOST_SHARED[capability]) == []


def test_products_use_wgmma_exactly_where_they_are_cut_for_it(compiled):
    capability, facts = compiled
    multiply = {"first", "second", "up", "down", "hopper_product", "coded_product", "nibble_product", "split_product"}
    products = [fact for fact in facts if fact["kernel"] in multiply]
    assert said(fact for fact in products if (fact["wgmma"] > 0) is not fact["wgmma_meant"]) == []
    assert any(fact["wgmma_meant"] for fact in products) is (capability == 90)
    assert not any(fact["wgmma"] for fact in facts if fact["kernel"].startswith("vector"))
