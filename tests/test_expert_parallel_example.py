"""The example of experts spread over ranks: dispatchers that never wait on the host, in threads; what is refused."""

import importlib.util

import pytest

from moesaic.dispatch.threads import in_threads, ranks_in_threads
from tests.rank_processes import ROOT

SPEC = importlib.util.spec_from_file_location("example", ROOT / "examples" / "expert_parallel.py")
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

PROMPT = "It was a truth un"  # 17 bytes: shares of 9 and 8, then of 1 and 0
BYTES = 3


def text(ranks, kind):
    model = example.model_without_experts()
    example.spread(model, kind, ranks, len(PROMPT))
    return example.continued(model, PROMPT, BYTES), [layer.mlp.experts.dispatcher for layer in model.model.layers]


def test_they_print_what_one_rank_prints():
    wanted, _ = text(None, "local")
    assert len(wanted) == len(PROMPT) + BYTES
    for kind in ("padded", "low_latency"):
        for found, dispatchers in in_threads(lambda ranks, kind=kind: text(ranks, kind), ranks_in_threads(2)):
            assert found == wanted
            assert {dispatcher.synchronises for dispatcher in dispatchers} == {False}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", ""], "--prompt is empty"),
        (["--bytes", "0"], "--bytes is 0"),
        (["--bytes", "-1"], "--bytes is -1"),
        (["--dispatcher", "odd"], "'odd'"),
    ],
)
def test_what_is_refused_is_one_error(capsys, arguments, said):
    with pytest.raises(SystemExit):
        example.read(arguments)
    assert said in capsys.readouterr().err.splitlines()[-1]
