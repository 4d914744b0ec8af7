"""What is tried: the cost model's choice first, few others, none that a backend or a layout cannot compute."""

import dataclasses

import pytest

from moesaic import BatchedExperts, GroupedContiguous, HopperGrouped, TritonGrouped, known_machine
from moesaic.tuning import Product, Streamed, Task, Vector, candidates, choose
from moesaic.tuning.candidates import DOWN_STRIPS, HOPPER_ONLY, OTHERS_ONLY, UP_STRIPS, may_serve
from moesaic.tuning.tilings import tilings
from tests.tuning.examples import H200, QWEN3, SHAPES, layer

SIZES = tuple(2**n for n in range(15))


def task(problem=QWEN3, machine=H200, backend=HopperGrouped):
    return Task(backend.name, backend.forms, problem, machine)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("machine", "backend"), [("h200", HopperGrouped), ("h200", TritonGrouped), ("a100", TritonGrouped)]
)
def test_the_first_is_the_cost_models_and_all_may_serve(shape, machine, backend):
    given = task(layer(shape), known_machine(machine), backend)
    for rows in SIZES:
        tried = candidates(given, rows)
        assert tried[0] == choose(given.problem, given.machine, rows, given.forms)
        assert 1 <= len(tried) == len(set(tried)) <= 28
        assert all(may_serve(choice, given, rows) for choice in tried)


def kinds(tried):
    return {type(choice) for choice in tried}


def test_a_form_is_tried_where_it_can_win():
    for rows in SIZES:
        tried = candidates(task(), rows)
        assert (Vector in kinds(tried)) is (rows * 8 <= 48)
        assert (Product in kinds(tried)) is (rows * 8 >= 32 * 128)
    assert kinds(candidates(task(), 16384)) == {Product}


def test_both_ways_to_get_at_rows_are_tried_where_copying_may_pay():
    def gathers(problem, rows):
        return {choice.gather for choice in candidates(task(problem), rows) if isinstance(choice, Product)}

    assert gathers(QWEN3, 4096) == {True}
    assert gathers(layer("mixtral"), 4096) == {True, False}
    assert gathers(layer("mixtral"), 256) == {True}
    assert gathers(layer("mixtral", weight_on_input=True), 256) == {False}


@pytest.mark.parametrize("layout", [GroupedContiguous(64), BatchedExperts()], ids=str)
def test_rows_in_expert_order(layout):
    problem = dataclasses.replace(QWEN3, layout=layout)
    assert kinds(candidates(task(problem), 8)) == {Streamed}
    assert kinds(candidates(task(problem), 2**17)) == {Product}
    assert kinds(candidates(task(problem, backend=TritonGrouped), 2**17)) == {Streamed}


def test_only_hopper_is_given_its_instructions():
    for rows in SIZES:
        for choice in candidates(task(machine=known_machine("a100"), backend=TritonGrouped), rows):
            assert isinstance(choice, Vector) or not (choice.swap or choice.tma)


def streams(machine, rows, problem=QWEN3):
    given = task(problem, known_machine(machine), TritonGrouped)
    return {choice for choice in candidates(given, rows) if isinstance(choice, Streamed)}


def test_what_is_tried_beside_the_cost_models_own_is_the_architectures():
    for machine, own, other in (("h200", HOPPER_ONLY, OTHERS_ONLY), ("a100", OTHERS_ONLY, HOPPER_ONLY)):
        tried = set().union(*(streams(machine, rows) for rows in SIZES))
        assert tried >= set(own)
        assert not tried & (set(other) - set(own) - {tiling for _, tiling in tilings(known_machine(machine))})


def test_experts_of_several_tiles_are_tried_with_each_number_of_tiles_side_by_side():
    def groups(rows):
        return {choice.group for choice in candidates(task(), rows) if isinstance(choice, Product)}

    assert groups(4096) == {8}
    assert groups(4097) == groups(16384) == {4, 8, 16}


def test_strips_are_tried_one_product_at_a_time():
    usual = choose(layer("mixtral"), H200, 1)
    tried = {choice for choice in candidates(task(layer("mixtral")), 1) if isinstance(choice, Vector)}
    assert tried == {usual, *(Vector(up, usual.down) for up in UP_STRIPS), *(Vector(usual.up, d) for d in DOWN_STRIPS)}


def test_blocks_are_not_twice_as_deep_as_a_row():
    small = layer("qwen3_30b", hidden_size=256, intermediate_size=128)
    vectors = [choice for choice in candidates(task(small), 1)[1:] if isinstance(choice, Vector)]
    assert vectors
    assert all(choice.up[1] <= 256 or choice.down[1] <= 256 for choice in vectors)
