"""What the cost model chooses: exactly what was measured for four layers, and what follows from it for others."""

import dataclasses

import pytest

from moesaic import BatchedExperts, GroupedContiguous, PaddedStandard, Problem, ReLU2, SwiGLU, known_machine
from moesaic.backends import HopperGrouped, TritonGrouped
from moesaic.errors import TuningError
from moesaic.models import MODELS
from moesaic.tuning import Product, Streamed, Vector, choose, products
from moesaic.tuning.strips import strips
from tests.tuning.examples import H200, QWEN3, SHAPES, layer

ONE = Vector((2, 2048, 1, 4), (8, 1024, 3, 4))
T1 = Streamed(16, 0, (8, 128, 3), (16, 128, 3), warps=1, swap=False, tma=False)
T8 = Streamed(16, 0, (16, 128, 3), (32, 128, 3), warps=2, swap=False, tma=False)
T20 = Streamed(32, 0, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True)
T44 = Streamed(32, 16, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True)
T72 = Streamed(64, 16, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True)
MORE = Streamed(128, 32, (128, 64, 4), (256, 64, 4), warps=8, swap=True, tma=True)
GATHERED, COPIED = Product(gather=True, group=8), Product(gather=False, group=8)

SUMMED = Product(gather=False, group=8, blocks=8)

BEYOND_ONE = {2: T1, 5: T8, 33: T20, 81: T72, 256: GATHERED, 2048: COPIED, 16384: SUMMED}
MEASURED = {
    "qwen3_30b": {1: ONE, 4: T1, 17: T8, 129: T20, 321: T44, 705: T72, 1024: GATHERED},
    "mixtral": {1: Vector((2, 2048, 1, 4), (4, 2048, 3, 8)), **BEYOND_ONE},
    "dsv3_ep8": {1: Vector((2, 1024, 1, 2), (8, 1024, 3, 4)), **BEYOND_ONE},
    "gptoss_120b": {
        **dict(enumerate((ONE, Vector((2, 1024, 1, 2), (4, 1024, 4, 4)), T1), start=1)),
        **dict(zip((33, 257, 641, 1409, 2048, 16384), (T8, T20, T44, T72, GATHERED, COPIED), strict=True)),
    },
}
"""Shape -> the number of tokens from which a choice holds: the thresholds that docs/performance/hopper.md was measured
with (commit d7a0d52), for 1 to 16384 tokens on an H200; `SUMMED` since commit 1496d6f."""

WITHOUT_PRODUCTS = {"qwen3_30b": 1153, "mixtral": 289, "dsv3_ep8": 289, "gptoss_120b": 2305}
"""Shape -> the number of tokens from which TritonGrouped took the widest tiles there."""


def runs(problem, machine, forms):
    """Number of tokens from which a choice holds -> the choice, for 1 to 16384 tokens."""
    found, last = {}, None
    for tokens in range(1, 16385):
        choice = choose(problem, machine, tokens, forms)
        if choice != last:
            found[tokens] = last = choice
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_the_four_measured_layers(shape, unchecked):
    assert runs(layer(shape), H200, HopperGrouped.forms) == MEASURED[shape]
    streamed = {t: c for t, c in MEASURED[shape].items() if not isinstance(c, Product)}
    assert runs(layer(shape), H200, TritonGrouped.forms) == {**streamed, WITHOUT_PRODUCTS[shape]: MORE}


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H200 141GB HBM3e"])
def test_a_variant_of_the_name_changes_nothing(name):
    machine = dataclasses.replace(H200, name=name)
    for tokens in (1, 3, 4, 1023, 1024):
        assert choose(QWEN3, machine, tokens) == choose(QWEN3, H200, tokens)


def first_products(machine):
    return next(t for t in range(1, 16385) if isinstance(choose(QWEN3, known_machine(machine), t), Product))


def test_products_begin_later_where_memory_is_slower():
    assert first_products("h200") == 1024
    assert 1200 < first_products("h100") < 1700


@pytest.mark.parametrize("machine", ["a100", "l4", "b200", "rtx5090"])
def test_other_architectures_get_what_their_shared_memory_holds(machine, unchecked):
    given = known_machine(machine)
    for shape in SHAPES:
        for choice in runs(layer(shape), given, TritonGrouped.forms).values():
            assert isinstance(choice, Vector) or not (choice.swap or choice.tma)


@pytest.mark.parametrize("layout", [GroupedContiguous(64), BatchedExperts()], ids=str)
def test_rows_in_expert_order_have_no_pairs(layout):
    problem = dataclasses.replace(QWEN3, layout=layout)
    assert choose(problem, H200, 1) == T1
    assert choose(problem, H200, 8192) == Product(gather=False)
    assert choose(problem, H200, 8191) == T72
    assert choose(problem, H200, 8192, TritonGrouped.forms) == T72


def test_padded_tokens_are_tokens():
    problem = dataclasses.replace(QWEN3, layout=PaddedStandard())
    assert all(choose(problem, H200, t) == choose(QWEN3, H200, t) for t in (1, 3, 17, 1024))


@pytest.mark.parametrize("changes", [{"weight_on_input": True}, {"hidden_size": 2056}], ids=str)
def test_rows_that_cannot_be_gathered_are_copied(changes):
    assert choose(dataclasses.replace(QWEN3, **changes), H200, 4096) == COPIED


def test_an_ungated_layer_reads_a_row_half_as_often():
    """Gathering costs by tiles of columns, which an activation without a gate has half of."""
    ungated = layer("qwen3_30b", activation=ReLU2(), intermediate_size=2560)
    assert choose(ungated, H200, 16384) == GATHERED
    assert choose(dataclasses.replace(ungated, intermediate_size=2568), H200, 16384) == COPIED
    assert choose(layer("qwen3_30b", intermediate_size=1280), H200, 16384) == GATHERED
    assert choose(layer("qwen3_30b", intermediate_size=1288), H200, 16384) == COPIED


def test_two_experts_alone_do_not_fill_the_machine_with_wide_tiles():
    """64 programs of 4 warps for 132 multiprocessors; narrower tiles are 256 of them."""
    slice_ = Problem(num_experts=2, top_k=2, hidden_size=7168, intermediate_size=2048, activation=SwiGLU())
    assert choose(slice_, H200, 16) == T8
    assert isinstance(choose(slice_, H200, 128), Streamed)
    assert isinstance(choose(slice_, H200, 1024), Product)
    smaller = dataclasses.replace(H200, processors=64)
    assert choose(slice_, smaller, 16) == T20


def test_a_choice_may_leave_almost_half_of_the_machine_idle():
    """112 programs of T20; narrower tiles begin where they are less than half of the multiprocessors."""
    slice_ = Problem(num_experts=2, top_k=2, hidden_size=7168, intermediate_size=4096, activation=SwiGLU())
    assert choose(slice_, dataclasses.replace(H200, processors=224), 16) == T20
    assert choose(slice_, dataclasses.replace(H200, processors=226), 16) == T8


@pytest.mark.parametrize("rows", [0, -3, 1.5, True, None, "64"])
def test_what_is_no_number_of_rows_is_refused(rows, unchecked):
    with pytest.raises(TuningError, match="num_rows"):
        choose(QWEN3, H200, rows)


def test_products_are_never_chosen_below_the_rows_that_memory_is_stated_for(monkeypatch):
    """On a GPU whose memory is more than twice as fast as an H200's."""
    assert products.mean_rows(H200) == 64
    monkeypatch.setattr(products, "bandwidth_of_one", lambda machine: 3 * products.H200)
    assert products.mean_rows(H200) == products.LEAST_MEAN_ROWS == 32


@pytest.mark.parametrize(
    ("changes", "tokens", "vector"),
    [
        ({"intermediate_size": 8192}, 1, Vector((2, 2048, 1, 4), (4, 2048, 3, 8))),
        ({"intermediate_size": 8184}, 1, ONE),
        ({"hidden_size": 2048}, 1, ONE),
        ({"hidden_size": 2040}, 1, Vector((16, 256, 4, 4), (8, 1024, 3, 4))),
        ({"hidden_size": 3072}, 1, Vector((2, 1024, 1, 2), (8, 1024, 3, 4))),
        ({"hidden_size": 3072}, 2, Vector((2, 1024, 1, 2), (4, 1024, 4, 4))),
        ({"hidden_size": 4096}, 2, ONE),
    ],
    ids=str,
)
def test_strips_of_other_sizes(changes, tokens, vector):
    assert strips(dataclasses.replace(QWEN3, **changes), tokens) == vector


def test_tokens_that_share_experts_are_ordered_sooner():
    """One expert: two tokens read it twice."""
    alone = Problem(num_experts=1, top_k=1, hidden_size=4096, intermediate_size=4096, activation=SwiGLU())
    assert isinstance(choose(alone, H200, 1), Vector)
    assert isinstance(choose(alone, H200, 2), Streamed)
    many = dataclasses.replace(alone, num_experts=1024, intermediate_size=1024)
    assert isinstance(choose(many, H200, 24), Vector)
    assert isinstance(choose(many, H200, 25), Streamed)


def test_more_slots_than_experts():
    assert choose(layer("mixtral", top_k=11), H200, 1) == choose(layer("mixtral"), H200, 1)


def test_every_known_model_has_a_choice_for_every_size_on_every_gpu(unchecked):
    for machine in ("a100", "h100", "h200", "b200", "rtx4090", "l4"):
        for model in MODELS:
            for tokens in (1, 2, 3, 7, 64, 500, 4096, 100_000):
                choice = choose(model.problem, known_machine(machine), tokens, TritonGrouped.forms)
                assert choice.computes(model.problem)


def test_the_sizes_of_a_product_are_those_of_its_kernel():
    pytest.importorskip("triton")
    from moesaic.kernels import hopper_form  # noqa: PLC0415

    assert (products.ROWS, products.COLUMNS, products.DEPTH) == (
        hopper_form.ROWS,
        4 * hopper_form.BOX,
        hopper_form.DEPTH,
    )


def test_more_slots_than_were_run_are_summed_behind_the_products():
    for top_k, blocks in ((2, 8), (8, 8), (9, 0)):
        problem = dataclasses.replace(layer("mixtral"), num_experts=16, top_k=top_k)
        assert choose(problem, H200, 16 * 4096).blocks == blocks
