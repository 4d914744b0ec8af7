"""Tokens that travel as FP8: what arrives, how many bytes it takes, that nobody waits for it, and what is refused."""

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from moesaic import Local
from moesaic.conformance.traffic import Traffic
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.arrangement import AsArrived
from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.exchanges import row_bytes
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.symmetric_memory import SymmetricMemory
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.dispatch.wire import WIRES, Wire
from moesaic.errors import DispatchError
from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.kernels.peer_window import PeerWindow, row_starts
from moesaic.quant import FP8, INT8, PerGroup, PerRow, Plain
from tests.dispatch.layers import calls

CODES = FP8(PerGroup(128))
PLACEMENT = Placement(5, ((4, 0, 2), (1, 4, 3)))
KINDS = {
    "AllToAll": AllToAll,
    "AllGather": AllGather,
    "PaddedAllToAll": lambda ranks, placement, **own: PaddedAllToAll(ranks, placement, 5, **own),
    "grouped": lambda ranks, placement, **own: PaddedAllToAll(ranks, placement, 5, GroupedByExpert(4), **own),
    "LowLatency": lambda ranks, placement, **own: LowLatency(ranks, placement, 5, **own),
}
# Every E4M3 number: 4 bits of exponent, 3 of mantissa, without the two NaN at the end.
NUMBERS = np.array(
    [(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1]
)


def oracle(row):
    """In numpy: the nearest number, of two the one with the even code, of each quotient by the group's scale."""
    out = np.empty(len(row), np.float32)
    for start in range(0, len(row), 128):
        group = row[start : start + 128]
        largest = np.abs(group[np.isfinite(group)]).max(initial=0.0).astype(np.float32)
        scale = np.float32(1.0) if largest == 0 else np.maximum(largest / np.float32(448), np.float32(2.0**-126))
        for place, value in enumerate(group, start):
            quotient = np.float32(value) / scale
            far = np.abs(NUMBERS - np.float64(abs(quotient)))
            best = [code for code in np.flatnonzero(far == far.min()) if (far == far.min()).sum() == 1 or code % 2 == 0]
            number = math.copysign(NUMBERS[best[0]], quotient) if np.isfinite(value) else np.nan
            out[place] = np.float32(number) * scale
    return out


def travelled(rows, wire=CODES):
    """Rows packed and unpacked."""
    row = Wire(rows.shape[1], 2, rows.dtype, format=wire)
    ids, weights = torch.zeros(len(rows), 2).int(), torch.ones(len(rows), 2)
    return row.unpack(row.pack(row.parts(rows), ids, weights)).rows


@pytest.mark.parametrize("hidden", [1, 65, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_arrive_as_a_table_of_the_numbers_says(dtype, hidden):
    generator = torch.Generator().manual_seed(hidden)
    rows = torch.randn(4, hidden, generator=generator) * torch.tensor([[1.0], [3e4], [1e-6], [1e-40]])
    rows[0, hidden // 2], rows[1, -1], rows[2, : hidden // 3] = torch.nan, torch.inf, 0.0
    rows = rows.to(dtype)
    wanted = torch.from_numpy(np.stack([oracle(row) for row in rows.float().numpy()])).to(dtype)
    torch.testing.assert_close(travelled(rows), wanted, rtol=0, atol=0, equal_nan=True)
    finite = torch.where(rows.isfinite(), rows, 2.0)
    assert torch.equal(travelled(finite), CODES.round_trip(finite))
    assert torch.equal(travelled(finite, Plain()), finite)
    assert travelled(rows[:0]).shape == (0, hidden)


def test_a_row_is_as_long_as_documented():
    sizes = {(h, wire): Wire(h, 8, torch.bfloat16, format=wire).num_bytes for h in (2048, 7168) for wire in WIRES}
    assert sizes == {(2048, Plain()): 4160, (2048, CODES): 2176, (7168, Plain()): 14400, (7168, CODES): 7456}
    assert row_starts(7168, 8, 2, coded=True) == (7168, 7168 + 224, 7168 + 224 + 32, 7456)
    assert row_bytes(1, 1, torch.bfloat16, AsArrived()) == 4 * 16  # one code is shorter than its scale
    assert row_bytes(2048, 8, torch.bfloat16, AsArrived()) == 4160


def test_no_value_is_read_on_the_host():
    with torch._subclasses.FakeTensorMode():  # in which none can be read
        rows = torch.empty(3, 300, dtype=torch.bfloat16)
        assert travelled(rows).shape == rows.shape
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            CODES.quantize(rows)


def outputs(dispatcher, hidden, routing):
    """Of experts that multiply by what their ids and places say."""
    batch, receipt = dispatcher.dispatch(hidden, routing)
    rows = batch.rows.float() * 0.75
    if hasattr(batch, "routing"):
        ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
        rows = rows * torch.where(ids >= 0, weights * (ids + 1), 0.0).sum(1, keepdim=True)
    return dispatcher.combine(rows.to(batch.rows.dtype), receipt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_answer_has_the_bits_of_rounded_tokens_that_travel_as_they_are(kind, dtype):
    ranks, handed = ranks_in_threads(2, timeout=20.0), []
    for tokens, (_, routing) in zip((5, 3), calls([5, 3]), strict=True):
        generator = torch.Generator().manual_seed(tokens)
        handed.append(((torch.randn(tokens, 200, generator=generator) * 7).to(dtype), routing))

    def run(own, hidden, routing):
        coded, plain = KINDS[kind](own, PLACEMENT, wire=CODES), KINDS[kind](own, PLACEMENT)
        assert (coded.rounding, plain.rounding) == (CODES, Plain())
        rounded = outputs(plain, CODES.round_trip(hidden), routing)
        return outputs(coded, hidden, routing), rounded, outputs(plain, hidden, routing)

    for coded, rounded, plain in in_threads(run, ranks, *zip(*handed, strict=True)):
        assert torch.equal(coded, rounded)
        assert not torch.equal(coded, plain)


def errors(run, *arguments):
    """The error of every rank."""

    def fails(*own):
        with pytest.raises(DispatchError) as fault:
            run(*own)
        return str(fault.value)

    return in_threads(fails, *arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_with_another_wire_are_told_which(kind):
    given = [
        KINDS[kind](ranks, PLACEMENT, wire=wire)
        for ranks, wire in zip(ranks_in_threads(2, timeout=20.0), WIRES, strict=True)
    ]
    words = f"differ in wire: Plain() on rank 0, but {CODES!r} on rank 1"
    assert all(words in error for error in errors(lambda own: own.agree(3, {}), given))
    if given[0].synchronises:  # then each call looks too
        assert all(words in error for error in errors(lambda own, call: own.dispatch(*call), given, calls([2, 2])))


def test_tokens_that_have_no_codes_are_an_error_on_all_ranks():
    given = [AllToAll(ranks, PLACEMENT, wire=CODES) for ranks in ranks_in_threads(2, timeout=20.0)]
    handed = calls([2, 2])
    handed[1] = (handed[1][0].double(), handed[1][1])
    first, second = errors(lambda own, call: own.dispatch(*call), given, handed)
    assert first == "AllToAll: no tokens came from rank 1, whose own error says why"
    assert second.startswith(
        f"hidden_states is torch.float64, but what travels as {CODES!r} needs one of torch.float32"
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wire", [FP8(PerRow()), INT8(PerGroup(128)), FP8(PerGroup(64)), "fp8", None], ids=repr)
def test_what_is_no_wire_is_refused(wire):
    (alone,) = ranks_in_threads(1)
    with pytest.raises(DispatchError, match=r"AllToAll.wire is .*, but tokens travel as Plain\(\) or FP8\(gran"):
        AllToAll(alone, Placement.contiguous(5, 1), wire=wire)


def test_a_gpu_without_the_instructions_is_refused():
    (alone,) = ranks_in_threads(1)
    object.__setattr__(alone, "device", torch.device("cuda", 0))
    with (
        torch._subclasses.FakeTensorMode(),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(8, 0)),
        mock.patch.object(torch.cuda, "get_device_name", return_value="an A100"),
    ):
        memory = torch.empty(8, dtype=torch.uint8, device="cuda:0")
        window = PeerWindow(memory, torch.empty(1), torch.empty(1), 0, 4, 128, 1, ExchangePlan(stripes=1))
        SymmetricMemory(alone, Placement.contiguous(5, 1), window)
        with pytest.raises(DispatchError, match=r"an A100 has no instructions for FP8.*, which came with sm_89: use"):
            SymmetricMemory(alone, Placement.contiguous(5, 1), window, wire=CODES)


def test_others_say_what_the_dispatcher_inside_rounds_to():
    (alone,) = ranks_in_threads(1)
    inside = AllToAll(alone, Placement.contiguous(5, 1), wire=CODES)
    recorded = Recorded(inside, LoadRecorder(1, 5), 0)
    assert recorded.rounding == OneRank(num_experts=5, num_ranks=1, dispatcher=recorded).rounding == CODES
    assert Local().rounding == Plain()


def test_the_kit_hands_in_tokens_that_are_kept():
    (alone,) = ranks_in_threads(1)
    coded = OneRank(num_experts=5, num_ranks=1, dispatcher=AllToAll(alone, Placement.contiguous(5, 1), wire=CODES))
    plain = OneRank(num_experts=5, num_ranks=1, dispatcher=Local())
    traffic = Traffic(tokens=(9,), top_k=2, hidden_size=300)
    (hidden, _), (whole, _) = traffic.calls(coded, torch.device("cpu"))[0], traffic.calls(plain, torch.device("cpu"))[0]
    assert torch.equal(CODES.round_trip(hidden), hidden)
    assert len({group.abs().max().item() for row in hidden for group in row.split(128)}) == 3
    assert torch.equal(whole, whole.round())
    with (
        mock.patch.object(AllToAll, "rounding", INT8(PerRow())),
        pytest.raises(DispatchError, match="the fleet rounds tokens to INT8"),
    ):
        replace(traffic, seed=1).calls(coded, torch.device("cpu"))
