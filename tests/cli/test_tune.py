"""`moesaic tune` on a CPU: with a backend and a clock that are told what to do, and as a command that declines."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from moesaic import (
    BatchedExperts,
    GroupedContiguous,
    PaddedStandard,
    Problem,
    Standard,
    SwiGLU,
    known_machine,
)
from moesaic.cli import tune as command
from moesaic.cli.synthetic_layer import random_batch, random_weights
from moesaic.cli.tune_bench import Expected, Layer, LayerBench
from moesaic.cli.tune_problems import check_memory
from moesaic.errors import LaunchError, MachineError, TuningError
from moesaic.tuning import (
    Streamed,
    Tuned,
    Vector,
    read_choice,
    read_table,
)
from tests.cli.tunable_stub import CPU, HERE, PROBLEM, Spoiled, ToldClock, tried, tuned

COUNTS = (1, 8, 90)


def test_the_fastest_choice_of_each_size_is_written_and_then_followed(tmp_path):
    backend = Spoiled()
    best = {rows: tried(rows)[1][-1] for rows in COUNTS}
    seconds = {choice: 6e-6 - n * 1e-6 for n, choice in enumerate(best.values())}
    sizes = tuned(tmp_path, backend, ToldClock(backend, seconds))
    assert [(size.tokens, size.rows, size.entry.choice) for size in sizes] == [(t, t, c) for t, c in best.items()]
    assert [size.entry.microseconds for size in sizes] == [seconds[size.entry.choice] * 1e6 for size in sizes]
    assert {size.entry.default_microseconds for size in sizes} == {10.0}
    [path] = tmp_path.iterdir()
    assert {size.file for size in sizes} == {path}
    assert [entry.rows for entry in read_table(path.read_text()).entries] == list(COUNTS)
    chosen = Tuned(str(tmp_path)).chooser(backend.task(dataclasses.replace(PROBLEM, graph_capture=True), HERE))
    assert [chosen(rows) for rows in COUNTS] == list(best.values())


WRONG = {
    "zeros": torch.zeros_like,
    "nan": lambda rows: torch.full_like(rows, torch.nan),
    "3 % too large": lambda rows: rows * 1.03,
    "one row": lambda rows: torch.cat([rows[:-1], rows[-1:] + 1]),
    "another order": lambda rows: rows.flip(0) * 1.0001 + 0.5,
}


@pytest.mark.parametrize("how", WRONG)
def test_a_choice_with_wrong_rows_never_wins(tmp_path, how):
    _, others = tried(90)
    backend = Spoiled(wrong={others[0]: WRONG[how]})
    clock = ToldClock(backend, {others[0]: 1e-9, others[1]: 5e-6})
    [size] = tuned(tmp_path, backend, clock, counts=(90,))
    assert size.entry.choice == others[1]
    [(refused, why)] = size.refused
    assert refused == others[0]
    assert why.startswith("its rows are wrong: Deviation(rms=")


def test_a_cost_model_with_wrong_rows_is_an_error_and_nothing_is_written(tmp_path):
    first, _ = tried(8)
    backend = Spoiled(wrong={first: torch.zeros_like})
    with pytest.raises(TuningError, match="the cost model's own choice"):
        tuned(tmp_path, backend, ToldClock(backend), counts=(8,))
    assert list(tmp_path.iterdir()) == []


def out_of_memory(rows):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")


def test_a_choice_that_asks_for_too_much_is_refused(tmp_path):
    _, others = tried(8)
    backend = Spoiled(wrong={others[0]: out_of_memory})
    [size] = tuned(tmp_path, backend, ToldClock(backend), counts=(8,))
    assert size.refused == ((others[0], "it does not run: CUDA out of memory. Tried to allocate 2.00 GiB"),)


def unlaunched(rows):
    raise LaunchError("the kernel first could not be launched")


def test_a_choice_that_cannot_be_launched_is_refused(tmp_path):
    _, others = tried(8)
    backend = Spoiled(wrong={others[0]: unlaunched})
    [size] = tuned(tmp_path, backend, ToldClock(backend), counts=(8,))
    assert size.refused == ((others[0], "it does not run: the kernel first could not be launched"),)


def test_a_graph_that_does_not_fit_loses(tmp_path):
    """A call fits, the pool of its graph beside it does not."""
    _, others = tried(8)
    backend = Spoiled()

    class Full(ToldClock):
        def recorded(self, call):
            call()
            return out_of_memory(None) if backend.ran[-1] == others[0] else call

    [size] = tuned(tmp_path, backend, Full(backend, {others[0]: 1e-9}), counts=(8,))
    assert size.entry is not None
    assert size.refused == ((others[0], "it does not run: CUDA out of memory. Tried to allocate 2.00 GiB"),)


def broken(rows):
    raise ZeroDivisionError


def test_any_other_error_of_a_kernel_is_not_hidden(tmp_path):
    backend = Spoiled(wrong={tried(8)[1][0]: broken})
    with pytest.raises(ZeroDivisionError):
        tuned(tmp_path, backend, ToldClock(backend), counts=(8,))


def test_the_end_of_the_budget_keeps_what_is_complete_and_the_next_run_goes_on(tmp_path):
    backend = Spoiled()
    clock = ToldClock(backend)
    tuned(tmp_path / "two", backend, clock, counts=COUNTS[:2])
    calls, clock.now = clock.now, 0.0
    first = tuned(tmp_path, backend, clock, seconds=calls + 20)
    assert [size.entry is not None for size in first] == [True, True, False]
    [path] = tmp_path.glob("*.json")
    assert [entry.rows for entry in read_table(path.read_text()).entries] == [1, 8]
    before = len(backend.ran)
    second = tuned(tmp_path, backend, clock)
    assert [size.file for size in second] == [None, None, path]
    assert [size.entry for size in second[:2]] == [size.entry for size in first[:2]]
    assert all(isinstance(choice, Streamed) or choice in tried(90)[1] for choice in backend.ran[before:])
    backend.ran.clear()
    assert [size.file for size in tuned(tmp_path, backend, clock)] == [None, None, None]
    assert backend.ran == []


def test_again_measures_what_is_known(tmp_path):
    backend = Spoiled()
    tuned(tmp_path, backend, ToldClock(backend))
    best = tried(8)[1][0]
    sizes = tuned(tmp_path, backend, ToldClock(backend, {best: 1e-6}), counts=(8,), again=True)
    [path] = tmp_path.iterdir()
    assert sizes[0].file == path
    table = read_table(path.read_text())
    assert [entry.rows for entry in table.entries] == list(COUNTS)
    assert table.at(8) == best


@pytest.mark.parametrize("layout", [PaddedStandard(), GroupedContiguous(32), BatchedExperts()], ids=str)
def test_every_layout_is_tuned_by_the_rows_that_the_layer_sees(tmp_path, layout):
    problem = dataclasses.replace(PROBLEM, layout=layout, bias=True)
    backend = Spoiled(wrong={tried(90, problem=problem)[1][0]: torch.zeros_like})
    sizes = tuned(tmp_path, backend, ToldClock(backend), problem=problem, counts=(90,))
    rows = random_batch(problem, 90, CPU, seed=90).rows.shape[:-1].numel()
    assert (sizes[0].rows, sizes[0].entry.rows) == (rows, rows)


def test_at_most_1024_rows_are_compared_spread_over_all():
    layer = Layer(Spoiled(), PROBLEM, HERE, random_weights(PROBLEM, CPU))
    batch = random_batch(PROBLEM, 3000, CPU)
    expected = Expected.of(layer, batch)
    assert (len(expected.rows), int(expected.rows[0]), int(expected.rows[-1])) == (1024, 0, 2999)
    assert expected.values.shape == (1024, PROBLEM.hidden_size)
    assert expected.fault(layer.by(tried(3000)[0])(batch)) == ""


def test_a_timer_holds_the_recorded_call(tmp_path):
    backend = Spoiled()
    layer = Layer(backend, PROBLEM, HERE, random_weights(PROBLEM, CPU))
    batch = random_batch(PROBLEM, 8, CPU)
    _, others = tried(8)
    bench = LayerBench(layer, batch, Expected.of(layer, batch), ToldClock(backend, {others[1]: 3.0}))
    timer = bench.timer(others[1])
    assert backend.ran == []
    assert [timer(), timer()] == [3.0, 3.0]
    assert backend.ran == [others[1]] * 2


def test_without_a_gpu_it_is_one_clear_error(moesaic):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    moesaic("tune", "mixtral-8x7b").assert_bad_input("CUDA device", HERE.name, "cost model")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nothing-of-that-name",), "no model is known"),
        (("mixtral-8x7b", "--model", "mixtral-8x7b"), "one or the other"),
        ((), "the problem lacks"),
        (("mixtral-8x7b", "--tokens", "0"), "--tokens"),
        (("mixtral-8x7b", "--tokens", "1,x"), "--tokens"),
        (("mixtral-8x7b", "--budget", "0"), "Budget.seconds"),
        (("mixtral-8x7b", "--budget", "nan"), "Budget.seconds"),
        (("mixtral-8x7b", "--device", "cuda:77"), "cuda:77"),
    ],
    ids=str,
)
def test_bad_input(moesaic, arguments, named, unchecked):
    moesaic("tune", *arguments).assert_bad_input(named)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """The command with a backend and a clock that are told, on a machine that is said to have a GPU."""
    backend = Spoiled()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "check_can_measure", lambda machine: None)
    monkeypatch.setattr(command, "check_memory", lambda *_: None)
    monkeypatch.setattr(command, "backend_for", lambda *_: backend)
    monkeypatch.setattr(command, "clock_for", lambda _: ToldClock(backend))
    return backend


FLAGS = ("--experts", "5", "--top-k", "2", "--hidden", "32", "--intermediate", "16", "--activation", "SwiGLU()")


def test_json_has_exactly_the_documented_keys(moesaic, gpu, tmp_path):
    answer = moesaic("tune", *FLAGS, "--tokens", "1,7", "--device", "cpu", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = answer.document
    assert list(document) == ["machine", "commit", "layers"]
    [layer] = document["layers"]
    assert list(layer) == ["name", "backend", "problem", "files", "missing", "sizes"]
    assert [size["tokens"] for size in layer["sizes"]] == [1, 7]
    for size in layer["sizes"]:
        assert list(size) == [
            *("tokens", "rows", "choice", "microseconds", "default_microseconds"),
            *("measured", "refused"),
        ]
        assert read_choice(size["choice"])
        assert size["measured"] is True
    [file] = layer["files"]
    assert file.startswith(str(tmp_path / "moesaic" / "tables" / "spoiled-E5-K2-H32-I16-"))
    assert json.loads((tmp_path / file).read_text())["backend"] == "spoiled"


def test_a_second_run_measures_nothing(moesaic, gpu, tmp_path):
    arguments = ("tune", *FLAGS, "--tokens", "7", "--device", "cpu", "--out", str(tmp_path / "tables"))
    first = moesaic(*arguments)
    assert f"written: {tmp_path / 'tables'}" in first.err
    gpu.ran.clear()
    second = moesaic(*arguments)
    assert "known before" in second.out
    assert gpu.ran == []
    assert moesaic(*arguments, "--again").code == 0
    assert gpu.ran


def test_text_says_what_was_refused_and_what_is_missing(moesaic, gpu, monkeypatch, tmp_path):
    problem = Problem(num_experts=5, top_k=2, hidden_size=32, intermediate_size=16, activation=SwiGLU())
    wrong = tried(7, problem=problem)[1][0]
    gpu.wrong[wrong] = torch.zeros_like
    clock = SimpleNamespace(monotonic=lambda: 1e9 if any(tmp_path.rglob("*.json")) else 0.0)
    monkeypatch.setattr(command, "time", clock)
    answer = moesaic("tune", *FLAGS, "--tokens", "7,1,3", "--device", "cpu")
    assert answer.code == 0
    assert f"not used: the layer, 7 tokens: {wrong!r}: its rows are wrong" in answer.err
    assert "not measured: the layer, 1, 3 tokens: the budget was spent" in answer.err
    assert answer.out.count("not measured") == 2


def test_an_interruption_keeps_what_is_complete(moesaic, gpu, tmp_path):
    """Ctrl-C while the second size is measured, by a choice that is not tried for the first."""

    def interrupt(rows):
        raise KeyboardInterrupt

    small = Problem(num_experts=5, top_k=2, hidden_size=32, intermediate_size=16, activation=SwiGLU())
    first, _ = tried(3, problem=small)
    assert isinstance(first, Vector)
    gpu.wrong[first] = interrupt
    answer = moesaic("tune", *FLAGS, "--tokens", "30,3", "--device", "cpu", "--json", "--out", str(tmp_path))
    assert answer.code == 130
    assert "interrupted" in answer.err
    [layer] = answer.document["layers"]
    assert [size["tokens"] for size in layer["sizes"]] == [30]
    [path] = tmp_path.glob("*.json")
    assert [entry.rows for entry in read_table(path.read_text()).entries] == [30]


def test_where_nothing_can_be_written_it_says_so_before_it_measures(moesaic, gpu, tmp_path):
    (tmp_path / "file").write_text("")
    answer = moesaic("tune", *FLAGS, "--tokens", "1", "--device", "cpu", "--out", str(tmp_path / "file"))
    answer.assert_bad_input("--out", "file")
    assert gpu.ran == []


def test_memory_that_does_not_suffice_is_an_error_before_anything_is_drawn(moesaic, gpu, monkeypatch):
    from moesaic.cli import tune_problems  # noqa: PLC0415

    monkeypatch.setattr(command, "check_memory", tune_problems.check_memory)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**20, 2**30))
    moesaic("tune", "mixtral-8x7b", "--device", "cpu").assert_bad_input("2.6 GiB", "fewer --tokens")


@pytest.mark.parametrize("layout", [Standard(), PaddedStandard(), GroupedContiguous(128), BatchedExperts()], ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 1000])
def test_memory_is_asked_for_at_least_the_rows_that_are_drawn(monkeypatch, layout, tokens):
    problem = dataclasses.replace(PROBLEM, layout=layout)
    rows = random_batch(problem, tokens, CPU, seed=tokens).rows.shape[:-1].numel()
    needed = problem.weight_bytes + 6 * Spoiled().workspace(problem, rows) + rows * problem.hidden_size * 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed - 1, 2 * needed))
    with pytest.raises(MachineError, match="fewer --tokens"):
        check_memory(Spoiled(), problem, CPU, tokens)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (13 * needed, 14 * needed))
    check_memory(Spoiled(), problem, CPU, tokens)


@pytest.mark.parametrize("where", ["choice", "oracle", "weights"])
def test_memory_that_does_not_suffice_after_all_is_one_clear_error(moesaic, gpu, monkeypatch, tmp_path, where):
    """Of the cost model's choice, of the oracle, of the weights: what was complete before is kept."""
    from moesaic.cli import tune_layer as module  # noqa: PLC0415

    small = Problem(num_experts=5, top_k=2, hidden_size=32, intermediate_size=16, activation=SwiGLU())
    if where == "choice":
        gpu.wrong[tried(3, problem=small)[0]] = out_of_memory
    elif where == "oracle":
        whole = module.Expected.of

        def of(layer, batch):
            return whole(layer, batch) if len(batch.rows) == 30 else out_of_memory(None)

        monkeypatch.setattr(module, "Expected", SimpleNamespace(of=of))
    else:
        monkeypatch.setattr(command, "random_weights", lambda *_: out_of_memory(None))
    answer = moesaic("tune", *FLAGS, "--tokens", "30,3", "--device", "cpu", "--json", "--out", str(tmp_path))
    answer.assert_bad_input("CUDA out of memory", "--tokens", "kept")
    entries = [entry.rows for path in tmp_path.glob("*.json") for entry in read_table(path.read_text()).entries]
    assert entries == ([] if where == "weights" else [30])


def test_the_backend_is_the_best_that_chooses_by_size():
    from moesaic.cli.tune_problems import backend_for  # noqa: PLC0415
    from moesaic.errors import NoBackendError  # noqa: PLC0415

    assert backend_for(PROBLEM, known_machine("h200")).name == "hopper_grouped"
    assert backend_for(PROBLEM, known_machine("a100")).name == "triton_grouped"
    batched = dataclasses.replace(PROBLEM, layout=BatchedExperts())
    assert backend_for(batched, known_machine("h200")).name == "triton_grouped"
    with pytest.raises(NoBackendError, match="hopper_grouped: declined"):
        backend_for(dataclasses.replace(PROBLEM, dtype=torch.float64), known_machine("h200"))
