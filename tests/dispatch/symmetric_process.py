"""Ranks of SymmetricMemory in Triton's interpreter, as programs that run with TRITON_INTERPRET=1.

Without arguments it plays fleets of 1 to 4 ranks; with `RANK SIZE WHERE` it is one of several processes that share
their windows through files, and really wait for each other.
"""

import dataclasses
import gc
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import interpreter_builder

from moesaic import bind
from moesaic.conformance import DispatcherConformance
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.arrangement import AsArrived
from moesaic.dispatch.by_expert import GroupedByExpert, SlabPerExpert
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.exchanges import row_bytes
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.symmetric_memory import SymmetricMemory
from moesaic.dispatch.threads import Threads, ranks_in_threads
from moesaic.errors import BatchError
from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.parallel.replacing import placed
from moesaic.quant import FP8, PerGroup, Plain
from tests.dispatch.fleets import NUM_EXPERTS
from tests.dispatch.layers import INNER, calls, layer_problem, one_rank
from tests.dispatch.plain_windows import PLAN, Played, in_files, in_one_process, run
from tests.dispatch.shards import shard
from tests.dispatch.some_trials import NAMES, by_traffic

AS_ARRIVED, PLAIN = AsArrived(), Plain()
MOST, HIDDEN, SLOTS = 3, 65, 8
"""Tokens a rank, columns and slots at most."""
REPLICAS = Placement(5, ((4, 0, 2), (1, 4, 3), (3, 0)))
UNEVEN = {"stripes": 1, "rows": 3, "step_bytes": 600}
"""Two tokens there in a step, of 304 or 336 bytes with their routing, and three sums back, of 260."""
CODES = FP8(PerGroup(128))
CONVERT = interpreter._convert_float
TORCH = {tl.float32: torch.float32, tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn}
PLAINEST = {tl.float32: torch.float32, tl.bfloat16: torch.uint16, tl.float8e4nv: torch.uint8}


def tried(fleet, *names):
    """The names of these checks, which passed on the first traffic of the kit, or on that of the number before `/`."""
    sizes = {"fleet": fleet, "hidden_sizes": (HIDDEN,), "max_tokens": MOST, "duplicate_ids": fleet.layout.has_routing}
    kit = type("Kit", (DispatcherConformance,), sizes)()
    wanted = [name.rpartition("/") for name in names]
    traffics = by_traffic(kit.trials())
    chosen = [trial for number, _, name in wanted for trial in traffics[int(number or 0)] if trial[0].name == name]
    for check, traffic in chosen:
        check.run(FleetSubject(fleet, torch.device("cpu")), traffic)
    return {check.name for check, _ in chosen}


def dispatchers(placement, arrangement=AS_ARRIVED, hidden=HIDDEN, plan=PLAN, **fields):
    """One for each rank of this process."""
    num_ranks = placement.num_ranks * fields.get("shards", 1)
    windows = in_one_process(num_ranks, MOST, row_bytes(hidden, SLOTS, torch.float32, arrangement), plan)
    each = zip(ranks_in_threads(num_ranks), windows, strict=True)
    return tuple(SymmetricMemory(ranks, placement, window, arrangement, **fields) for ranks, window in each)


def fleet(num_ranks, arrangement=AS_ARRIVED, wire=PLAIN, **fields):
    """As one process plays it."""
    given = dispatchers(Placement.contiguous(NUM_EXPERTS, num_ranks), arrangement, wire=wire)
    return Played(num_experts=NUM_EXPERTS, num_ranks=num_ranks, dispatchers=given, **fields)


def played():
    """A part of the kit on fleets of this process, every check of it."""
    names = tried(fleet(1), "exactly_once", "3/undefined_rows", "6/interleaved", "8/ownership")
    names |= tried(fleet(3), "every_pair", "float32_sum", "equals_one_rank", "nan_tokens")
    names |= tried(fleet(4), "exactly_once", "ownership", "9/float32_sum")
    names |= tried(fleet(2, GroupedByExpert(alignment=4)), "exactly_once", "garbage_ids", "equals_one_rank")
    slabs = fleet(2, SlabPerExpert(weight_on_input=True), weight_on_input=True)
    names |= tried(slabs, "exactly_once", "undefined_rows", "two_runs", "equals_one_rank")
    sys.stdout.write(" ".join(sorted(names)) + "\n")


def layers():
    """Whole layers against one rank, with replicas and with sharded experts; the bits of AllToAll."""
    for placement, shards in ((REPLICAS, 1), (Placement.contiguous(5, 2), 2)):
        given = dispatchers(placement, shards=shards)
        handed = calls([MOST, 0, 2, 1][: len(given)])
        play = Played(num_experts=5, num_ranks=len(given), dispatchers=given)
        delivered = play.dispatch_all(handed)
        made = []
        for rank, (batch, _) in enumerate(delivered):
            held = len(placement.experts[rank // shards])
            problem = layer_problem(held, intermediate_size=INNER // shards, layout=play.layout)
            made.append(bind(problem, shard(placement, rank, shards))(batch))
        outputs = play.combine_all(made, [receipt for _, receipt in delivered])
        for got, wanted in zip(outputs, one_rank(handed), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    sys.stdout.write("layers equal one rank\n")


def bits():
    """Sums of float16 come out as those of AllToAll."""
    same_bits(calls([MOST, 0, 2], dtype=torch.float16))
    sys.stdout.write("same bits\n")


def plans():
    """However the tokens are spread over programs and steps, and the columns over blocks: a step with room for more."""
    for sizes in (
        {"stripes": 1},
        {"stripes": 1, "rows": 2},
        {"stripes": 3, "elements": 16},
        {"stripes": 2, "rows": 5},
        UNEVEN,
    ):
        same_bits(calls([MOST, 0, 2]), plan=ExchangePlan(**sizes))
    sys.stdout.write("same bits by every plan\n")


def convert(values, source, target, rounding):
    """As a GPU does: triton's interpreter cuts bfloat16 off, and of E4M3 it loses carries into the exponent and NaN."""
    if tl.float32 not in (source, target):
        return CONVERT(values, source, target, rounding)
    bits = torch.from_numpy(np.ascontiguousarray(values)).view(TORCH[source])
    numbers = bits.clamp(-448.0, 448.0) if target == tl.float8e4nv else bits
    return numbers.to(TORCH[target]).view(PLAINEST[target]).numpy()


def coded():
    """Tokens that travel as FP8: a part of the kit, and the bits of AllToAll for rows of two blocks and a half."""
    tried(fleet(1, wire=CODES), "exactly_once")
    tried(fleet(3, wire=CODES), "2/exactly_once", "nan_tokens", "equals_one_rank")
    tried(fleet(2, SlabPerExpert(), CODES), "exactly_once", "undefined_rows")
    counted(wire=CODES)
    generator = torch.Generator().manual_seed(5)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        handed = []
        for count, (_, routing) in zip([MOST, 0, 2], calls([MOST, 0, 2]), strict=True):
            hidden = torch.randn(count, 2 * 128 + 57, generator=generator) * 10.0 ** torch.randint(-4, 4, (count, 1))
            hidden[:1, 3], hidden[:1, 140], hidden[1:2, 128:256] = torch.nan, -torch.inf, 0.0
            handed.append((hidden.to(dtype), routing))
        same_bits(handed, wire=CODES, plan=ExchangePlan(stripes=2, elements=256))
    sys.stdout.write("same bits as codes\n")


def same_bits(handed, plan=PLAN, **fields):
    """The outputs of AllToAll, NaN where its are."""
    placement, found = Placement.contiguous(5, 3), []
    for each in (
        dispatchers(placement, hidden=handed[0][0].shape[1], plan=plan, **fields),
        tuple(AllToAll(ranks, placement, **fields) for ranks in ranks_in_threads(3)),
    ):
        kind = Played if isinstance(each[0], SymmetricMemory) else Threads
        play = kind(num_experts=5, num_ranks=3, dispatchers=each)
        delivered = play.dispatch_all(handed)
        made = []
        for (batch, _), experts in zip(delivered, placement.experts, strict=True):
            active = (batch.routing.topk_ids >= 0).sum(1, keepdim=True)
            made.append((batch.rows * active / (3 + experts[0])).to(batch.rows.dtype))
        found.append(play.combine_all(made, [receipt for _, receipt in delivered]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def loads(recorder, times=1):
    """What it counted of each layer, over `times`; what is no expert's stays at zero."""
    bins = torch.stack([recorder.bins(layer) for layer in range(recorder.num_layers)])
    assert not bins[:, [0, -1]].any()
    assert not (bins % times).any()
    return (bins[:, 1:-1] // times).tolist()


def named(ids, num_experts=5):
    """How many slots name each expert."""
    return [int((ids == expert).sum()) for expert in range(num_experts)]


def handed_in(ranks):
    """Ids of both ends, twice the same, and none of expert 2; the second rank has no token."""
    handed = calls([MOST, 0, 2, 1][:ranks])
    for _, routing in handed:
        routing.topk_ids[routing.topk_ids == 2] = 1
    handed[0][1].topk_ids.copy_(torch.tensor([[4, 4, 0], [-1, 5, 3], [2**31 - 1, -(2**31), 1]]))
    return handed


def counted(placement=REPLICAS, plan=PLAN, **fields):
    """An exchange that counts brings what one brings that does not; each slot once, whoever needs its token."""
    given = dispatchers(placement, plan=plan, **fields)
    handed, recorders = handed_in(len(given)), [LoadRecorder(2, 5) for _ in given]
    wanted = Played(num_experts=5, num_ranks=len(given), dispatchers=given).dispatch_all(handed)
    for times in (1, 2):
        each = zip(given, handed, recorders, strict=True)
        exchanges = [dispatcher.token_exchange(*call, recorder.bins(1)) for dispatcher, call, recorder in each]
        run(exchanges)
        for (_, routing), recorder in zip(handed, recorders, strict=True):
            assert loads(recorder, times) == [[0] * 5, named(routing.topk_ids)]
        for exchange, (batch, _) in zip(exchanges, wanted, strict=True):
            live = (batch.routing.topk_ids >= 0).any(1)
            assert torch.equal(exchange.arrivals.ids, batch.routing.topk_ids)
            assert torch.equal(exchange.arrivals.rows[live], batch.rows[live])


def counts():
    """By every plan, of shards, and by `Recorded`, which launches nothing of its own unless it counts other experts."""
    for plan in (PLAN, ExchangePlan(stripes=1), ExchangePlan(stripes=2, rows=5), ExchangePlan(**UNEVEN)):
        counted(plan=plan)
    counted(Placement.contiguous(5, 2), shards=2)
    [dispatcher], [(hidden, routing)] = dispatchers(Placement.contiguous(5, 1)), handed_in(1)
    inner, outer, other = LoadRecorder(1, 5), LoadRecorder(2, 5), LoadRecorder(1, 3)
    once = named(routing.topk_ids)
    with mock.patch.object(LoadRecorder, "record", side_effect=AssertionError("a launch of its own")):
        recorded = Recorded(dispatcher, inner, 0)
        recorded.dispatch(hidden, routing)
        placed(recorded, Placement(5, ((3, 1, 4, 0, 2),))).dispatch(hidden, routing)
    try:
        recorded.dispatch(hidden[:1], routing)
    except BatchError:
        refused = loads(inner, 2)
    assert refused == [once]
    Recorded(recorded, outer, 1).dispatch(hidden, routing)
    assert loads(inner, 3) == [once]
    assert outer.read().counts.tolist() == [[0] * 5, once]
    Recorded(dispatcher, other, 0).dispatch(hidden, routing)
    assert other.read().counts.tolist() == [once[:3]]
    sys.stdout.write("counted once\n")


def race(first, second):
    """Rank 0 sends in its second exchange before rank 1 has looked at what came in the first."""
    first[0].run(receive=False)
    first[1].run(receive=False)
    first[0].run(send=False)
    second[0].run(receive=False)
    first[1].run(send=False)
    second[1].run()
    second[0].run(send=False)


def ahead():
    """A rank that sends its next tokens early loses none of the other's, and none of its own."""
    placement, handed = Placement.contiguous(5, 2), [calls([MOST, MOST]), calls([1, 2], seed=1)]
    wanted = [Played(num_experts=5, num_ranks=2, dispatchers=dispatchers(placement)).dispatch_all(h) for h in handed]
    given = dispatchers(placement)
    first, second = ([d.token_exchange(*call) for d, call in zip(given, each, strict=True)] for each in handed)
    race(first, second)
    for exchanges, batches in zip((first, second), wanted, strict=True):
        for exchange, (batch, _) in zip(exchanges, batches, strict=True):
            live = (batch.routing.topk_ids >= 0).any(1)
            assert torch.equal(exchange.arrivals.ids, batch.routing.topk_ids)
            assert torch.equal(exchange.arrivals.rows[live], batch.rows[live])
    sys.stdout.write("one rank ahead\n")


def ahead_with_sums():
    """The same of sums: experts that return their input make of a token as many times itself as it has experts."""
    handed = [calls([MOST, MOST]), calls([MOST, MOST], seed=1)]
    given = dispatchers(Placement.contiguous(5, 2))
    play, exchanges = Played(num_experts=5, num_ranks=2, dispatchers=given), []
    for delivered in [play.dispatch_all(each) for each in handed]:
        made = [batch.rows * (batch.routing.topk_ids >= 0).sum(1, keepdim=True) for batch, _ in delivered]
        sums = zip(given, made, delivered, strict=True)
        exchanges.append([dispatcher.sum_exchange(rows, receipt) for dispatcher, rows, (_, receipt) in sums])
    race(*exchanges)
    for each, tokens in zip(exchanges, handed, strict=True):
        for exchange, (hidden, routing) in zip(each, tokens, strict=True):
            active = (routing.topk_ids < 5).sum(1, keepdim=True)
            torch.testing.assert_close(exchange.output, hidden * active, rtol=1e-6, atol=1e-6)
    sys.stdout.write("one rank ahead with sums\n")


def unheard():
    """A rank that does not send, or not all of its steps, is an error of those that wait for it, and ends them."""
    checked = dataclasses.replace(interpreter_builder.options, debug=True, sanitize_overflow=False)
    for steps in (0, 1):
        given = dispatchers(Placement.contiguous(NUM_EXPERTS, 2))
        handed = calls([MOST, MOST], num_experts=NUM_EXPERTS)
        one, other = (d.token_exchange(*call) for d, call in zip(given, handed, strict=True))
        if steps:
            other.run(receive=False)
            flags = given[0].window.memory[: 2 * 2 * PLAN.stripes * 8].view(torch.int64).view(2, 2, -1)
            assert flags[1, 1].tolist() == [((1 << 16 | 0xFFFF) << 32) | MOST] * 2
            flags[1, 1, 0] = ((1 << 16 | steps) << 32) | MOST
        try:
            with mock.patch.object(interpreter_builder, "options", checked):
                one.run()
        except InterpreterError as fault:
            sys.stdout.write(f"{fault.__cause__}\n")


def waiting(rank, size, where):
    """One of `size` processes, each of which runs the kernels as a GPU does: both halves in one launch."""
    start = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{where}/init", rank=rank, world_size=size, timeout=start)
    try:
        ranks = Ranks.world(timeout=60.0)
        placement = Placement.contiguous(NUM_EXPERTS, size)
        window = in_files(Path(where), rank, size, (MOST, row_bytes(HIDDEN, SLOTS, torch.float32, AS_ARRIVED)))
        dispatcher = SymmetricMemory(ranks, placement, window)
        dispatcher.agree(len(placement.experts[rank]), {})  # and nobody signals before all flags are zero
        recorder = LoadRecorder(1, NUM_EXPERTS)
        one = OneRank(num_experts=NUM_EXPERTS, num_ranks=size, rank=rank, dispatcher=Recorded(dispatcher, recorder, 0))
        names = tried(one, *sorted(NAMES))
        rounding = dataclasses.replace(one, dispatcher=dataclasses.replace(dispatcher, wire=CODES))
        with mock.patch.object(interpreter, "_convert_float", convert):
            tried(rounding, "exactly_once", "nan_tokens", "equals_one_rank")
        handed, before = calls([MOST, 2][:size], num_experts=NUM_EXPERTS), recorder.read()
        one.dispatch_all(handed)
        assert recorder.read().since(before).counts.tolist() == [named(handed[rank][1].topk_ids, NUM_EXPERTS)]
        sys.stdout.write(f"{' '.join(sorted(names))}\n{window.epochs.unique().tolist()}\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        waiting(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
        gc.collect()  # the kits' classes are cycles that hold the group, whose threads have to end before Python does
    else:
        for scenario in (played, layers, bits, ahead, ahead_with_sums, plans, counts, unheard):
            scenario()
        with mock.patch.object(interpreter, "_convert_float", convert):
            coded()
