"""The rules that a backend can be given: the cost model, one choice for all, or tables before the cost model."""

import dataclasses

import pytest

from moesaic import BatchedExperts, GroupedContiguous, HopperGrouped, TritonGrouped
from moesaic.errors import TuningError
from moesaic.tuning import FORMS, Always, CostModel, Entry, Product, Streamed, Task, Tuned, Vector, choose, write_table
from moesaic.tuning.choosing import Padding
from tests.tuning.examples import ENTRIES, H200, ORIGIN, PRODUCT, QWEN3, STREAMED, VECTOR, WGMMA, layer, table

SIZES = (1, 2, 3, 4, 17, 129, 500, 1023, 1024, 4096, 20000)


def task(problem=QWEN3, machine=H200, backend=HopperGrouped):
    return Task(backend.name, backend.forms, problem, machine)


def test_the_cost_model():
    chosen = CostModel().chooser(task())
    assert [chosen(rows) for rows in SIZES] == [choose(QWEN3, H200, rows) for rows in SIZES]


def test_without_products_all_rows_are_streamed():
    chosen = CostModel(products=False).chooser(task())
    assert [chosen(rows) for rows in SIZES] == [choose(QWEN3, H200, rows, TritonGrouped.forms) for rows in SIZES]
    assert isinstance(chosen(20000), Streamed)


@pytest.mark.parametrize("choice", [VECTOR, STREAMED, WGMMA, PRODUCT], ids=lambda c: type(c).__name__)
def test_one_choice_for_all(choice):
    chosen = Always(choice).chooser(task())
    assert {chosen(rows) for rows in SIZES} == {choice}


@pytest.mark.parametrize("layout", [GroupedContiguous(64), BatchedExperts()], ids=str)
def test_pairs_by_themselves_need_a_routing(layout):
    problem = dataclasses.replace(QWEN3, layout=layout)
    chosen = Always(VECTOR).chooser(task(problem))
    assert all(isinstance(chosen(rows), Streamed) for rows in SIZES)


def test_a_form_that_the_backend_lacks_is_an_error():
    with pytest.raises(TuningError, match=r"triton_grouped is to compute by Product.* has Vector, Streamed"):
        Always(PRODUCT).chooser(task(backend=TritonGrouped))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: HopperGrouped(7),
        lambda: TritonGrouped(choosing=PRODUCT),
        lambda: CostModel(products=1),
        lambda: Always("Product()"),
        lambda: Tuned(directory=3),
        lambda: Tuned(directory=""),
        lambda: task(problem="mixtral"),
        lambda: task(machine="h200"),
        lambda: Task(7, HopperGrouped.forms, QWEN3, H200),
        lambda: Task("hopper_grouped", (PRODUCT,), QWEN3, H200),
        lambda: Task("hopper_grouped", Streamed, QWEN3, H200),
    ],
)
def test_what_is_no_rule_is_refused(wrong, unchecked):
    with pytest.raises(TuningError, match="needs"):
        wrong()


def test_rules_are_values():
    for rule in (CostModel(), CostModel(products=False), Always(PRODUCT), Always(WGMMA), Tuned(), Tuned("some/where")):
        assert eval(repr(rule)) == rule  # noqa: S307
        assert hash(eval(repr(rule))) == hash(rule)  # noqa: S307
    assert HopperGrouped() == HopperGrouped(Tuned()) != HopperGrouped(CostModel())


def test_what_products_may_add():
    """Streaming adds nothing; products from 32 mean rows on; gathering what can be gathered copies nothing."""
    assert CostModel(products=False).padding(QWEN3) is None
    assert Always(STREAMED).padding(QWEN3) is Always(VECTOR).padding(QWEN3) is None
    assert CostModel().padding(QWEN3) == Tuned().padding(QWEN3) == Padding(32, copied=False)
    assert CostModel().padding(layer("mixtral")) == Padding(32, copied=True)
    assert Always(Product()).padding(layer("mixtral")) == Padding(1, copied=False)
    assert Always(Product(gather=False)).padding(QWEN3) == Padding(1, copied=True)
    assert Always(Product()).padding(layer("qwen3_30b", hidden_size=2056)) == Padding(1, copied=True)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """By a table of one's own, without those that are shipped."""
    monkeypatch.setattr("moesaic.tuning.table_files.SHIPPED", tmp_path / "none")
    write_table(tmp_path, table())
    return Tuned(str(tmp_path))


def test_a_table_that_fits_is_followed_and_else_the_cost_model(tuned):
    chosen = tuned.chooser(task())
    assert [chosen(entry.rows) for entry in ENTRIES] == [entry.choice for entry in ENTRIES]
    assert chosen(300) == WGMMA
    for rows in (2, 3, 9, 200, 1025, 16384):
        assert chosen(rows) == choose(QWEN3, H200, rows)


@pytest.mark.parametrize(
    "other",
    [
        task(backend=TritonGrouped),
        task(layer("mixtral")),
        task(layer("qwen3_30b", bias=True)),
        task(machine=dataclasses.replace(H200, packages=(("torch", "2.11.0"), ("triton", "3.7.0")))),
        task(machine=dataclasses.replace(H200, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30)),
    ],
)
def test_a_table_of_something_else_is_not_followed(tuned, other):
    chosen = tuned.chooser(other)
    for rows in (1, 8, 512, 1024):
        assert chosen(rows) == choose(other.problem, other.machine, rows, other.forms)


def test_files_are_read_when_it_is_bound_and_never_again(tuned, tmp_path):
    chosen = tuned.chooser(task())
    for path in tmp_path.iterdir():
        path.unlink()
    assert chosen(512) == WGMMA


def test_there_is_nothing_to_be_found_wherever_it_points(tmp_path):
    (tmp_path / "file").write_text("no directory")
    for place in (tmp_path / "file", tmp_path / "nowhere", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        assert Tuned(str(place)).chooser(task())(64) == choose(QWEN3, H200, 64)


@pytest.mark.parametrize(
    ("rows", "choice", "problem"),
    [
        (31 * 16, Product(), QWEN3),  # below 32 mean rows: more padding than the stated memory has
        (1024, Product(gather=False), QWEN3),  # copies that the stated memory has not
    ],
    ids=str,
)
def test_what_the_stated_memory_does_not_cover_is_not_followed(tmp_path, rows, choice, problem):
    write_table(tmp_path, table(problem=problem, entries=(Entry(rows, choice, 1.0, 2.0),)))
    assert Tuned(str(tmp_path)).chooser(task(problem))(rows) == choose(problem, H200, rows)


def test_copies_are_followed_where_they_are_stated(tmp_path):
    problem = layer("mixtral")
    write_table(tmp_path, table(problem=problem, entries=(Entry(1024, Product(gather=False), 1.0, 2.0),)))
    assert Tuned(str(tmp_path)).chooser(task(problem))(1000) == Product(gather=False)
    assert choose(problem, H200, 1000) == Product(gather=True)


def test_a_form_or_an_instruction_that_is_not_there_is_not_followed(tmp_path):
    """As a hand could write it."""
    a100 = dataclasses.replace(H200, architecture="sm_80")
    origin = dataclasses.replace(ORIGIN, architecture="sm_80")
    entries = tuple(Entry(2**n, choice, 1.0, 2.0) for n, choice in enumerate((PRODUCT, WGMMA, VECTOR), start=5))
    grouped = layer("qwen3_30b", layout=GroupedContiguous(64))
    write_table(tmp_path, table(backend="triton_grouped", problem=grouped, origin=origin, entries=entries))
    there = task(grouped, a100, TritonGrouped)
    chosen = Tuned(str(tmp_path)).chooser(there)
    for entry in entries:
        assert chosen(entry.rows) == choose(grouped, a100, entry.rows, TritonGrouped.forms)


def test_every_form_is_of_some_backend():
    assert set(FORMS) == set(HopperGrouped.forms) > set(TritonGrouped.forms) == {Vector, Streamed}
