"""The command line as a process: streams, exit codes, colours, and what is imported."""

import json
import os
import pty
import subprocess
import sys

import pytest

COMMAND = (sys.executable, "-c", "from moesaic.cli.app import main; main()")
EXPLAIN = ("explain", "--model", "mixtral-8x7b", "--machine", "h200")


def run(*arguments, **environment):
    variables = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(  # noqa: S603
        (*COMMAND, *arguments), capture_output=True, text=True, check=False, env=variables | environment
    )


def run_on_a_terminal(*arguments, **environment):
    """What a terminal is sent."""
    leader, follower = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    with subprocess.Popen(  # noqa: S603
        (*COMMAND, *arguments),
        stdout=follower,
        stderr=follower,
        stdin=follower,
        env=variables | {"TERM": "xterm-256color", "COLUMNS": "200"} | environment,
    ) as process:
        os.close(follower)
        sent = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            sent += piece
    os.close(leader)
    return process.returncode, sent.decode()


def test_a_pipe_gets_plain_text_and_one_line_of_error():
    done = run(*EXPLAIN)
    assert done.returncode in (0, 1)
    assert "\x1b" not in done.stdout + done.stderr
    bad = run("explain", "--problem", "__import__('os').system('echo owned')")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert len(bad.stderr.splitlines()) == 1
    assert "Traceback" not in bad.stderr


def test_no_color_is_honoured_on_a_terminal():
    code, coloured = run_on_a_terminal("--help")
    assert code == 0
    assert "\x1b[" in coloured
    _, plain = run_on_a_terminal(*EXPLAIN, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "runs it" in plain


def test_progress_is_drawn_on_a_terminal_only():
    flags = ("--experts", "4", "--top-k", "2", "--hidden", "16", "--intermediate", "16", "--activation", "SwiGLU")
    bench = ("bench", *flags, "--tokens", "1", "--repeats", "1")
    _, seen = run_on_a_terminal(*bench)
    assert "timing" in seen
    done = run(*bench, "--json")
    assert done.returncode == 0
    assert "timing" not in done.stdout + done.stderr
    assert list(json.loads(done.stdout)) == ["machine", "commit", "rows"]


def test_version_and_help(moesaic):
    assert moesaic("--version").out.startswith("moesaic ")
    helped = moesaic("explain", "--help")
    assert helped.code == 0
    for option in ("--experts", "--activation", "--weight-on-input", "--machine", "--json"):
        assert option in helped.out
    listed = moesaic("--help").out
    for command in ("machine", "backends", "models", "explain", "matrix", "bench", "demo"):
        assert command in listed
    shown = moesaic()
    assert shown.code == 2
    assert "explain" in shown.out


def test_transformers_and_triton_are_not_imported_where_they_are_not_needed():
    script = (
        "import sys\n"
        "from moesaic.cli.app import app\n"
        f"for arguments in (['--help'], {list(EXPLAIN)!r}, ['matrix'], ['models'], ['bench', '--help']):\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print([name for name in ('transformers', 'triton') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [("models",), ("models", "--json"), ("matrix",)])
def test_a_closed_pipe_is_no_traceback(arguments):
    with subprocess.Popen((*COMMAND, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603
        process.stdout.close()
        complaint = process.stderr.read()
    assert complaint == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux keeps a full disk there, other systems do not")  # noqa: PTH110
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        done = subprocess.run((*COMMAND, "models"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "No space left" in done.stderr
