"""Files of tables: found or ignored with the reason, written whole or not at all, never over another's."""

import dataclasses
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from moesaic.errors import TuningError
from moesaic.machine import user_cache
from moesaic.models import known_model
from moesaic.tuning import Entry, Product, TableFiles, read_table, write_table, written
from moesaic.tuning.fingerprint import fingerprint
from moesaic.tuning.table_files import SHIPPED, file_of, user_tables
from tests.tuning.examples import ORIGIN, QWEN3, STREAMED, VECTOR, layer, table

ROOT = Path(__file__).parents[2]


def found(*directories, problem=QWEN3, backend="hopper_grouped", origin=ORIGIN):
    return TableFiles(directories).find(backend, problem, origin)


def test_what_was_written_is_found(tmp_path):
    path = write_table(tmp_path / "new" / "directory", table())
    assert path.name.startswith("hopper_grouped-E128-K8-H2048-I768-")
    assert found(path.parent).table == table()
    assert found(path.parent).files == (path,)
    assert found(path.parent).ignored == ()


def test_nothing_is_there():
    assert found(Path("/nowhere/at/all")) == dataclasses.replace(found(), table=None, files=(), ignored=())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"problem": layer("qwen3_30b", bias=True)}, "is of another bias False, not True"),
        ({"origin": dataclasses.replace(ORIGIN, triton="3.7.0")}, "is of another triton 3.6.0, not 3.7.0"),
        ({"origin": dataclasses.replace(ORIGIN, kernels="0123456789abcdef")}, "is of another kernels "),
        ({"origin": dataclasses.replace(ORIGIN, processors=16)}, "is of another device NVIDIA H200"),
    ],
    ids=str,
)
def test_a_table_of_something_else_is_ignored_with_the_reason(tmp_path, asked, why):
    path = write_table(tmp_path, table())
    answer = found(tmp_path, **asked)
    assert (answer.table, answer.files) == (None, ())
    [(ignored, reason)] = answer.ignored
    assert ignored == path
    assert reason.startswith(why)


def test_tables_of_other_sizes_and_backends_are_not_even_looked_at(tmp_path):
    write_table(tmp_path, table())
    assert found(tmp_path, problem=layer("mixtral")).ignored == ()
    assert found(tmp_path, problem=layer("qwen3_30b", intermediate_size=76)).ignored == ()
    assert found(tmp_path, backend="triton_grouped").ignored == ()


@pytest.mark.parametrize(
    "others",
    [
        {"origin": dataclasses.replace(ORIGIN, torch="2.12.0")},
        {"origin": dataclasses.replace(ORIGIN, kernels="0123456789abcdef")},
        {"origin": dataclasses.replace(ORIGIN, device="NVIDIA H200 NVL")},
        {"problem": layer("qwen3_30b", bias=True)},
        {"backend": "triton_grouped"},
    ],
    ids=str,
)
def test_another_environments_table_is_never_overwritten(tmp_path, others):
    first = write_table(tmp_path, table())
    before = first.read_bytes()
    second = write_table(tmp_path, table(**others))
    assert second != first
    assert first.read_bytes() == before


def test_entries_that_were_there_are_kept(tmp_path):
    write_table(tmp_path, table())
    path = write_table(tmp_path, table(entries=(Entry(8, VECTOR, 1.0, 2.0), Entry(16, STREAMED, 1.0, 2.0))))
    assert len(list(tmp_path.iterdir())) == 1
    assert [entry.rows for entry in read_table(path.read_text()).entries] == [1, 8, 16, 512, 1024]
    assert found(tmp_path).table.at(8) == VECTOR


def test_the_users_entries_come_before_the_shipped_ones(tmp_path):
    mine = table(entries=(Entry(8, VECTOR, 1.0, 2.0),))
    paths = (write_table(tmp_path / "mine", mine), write_table(tmp_path / "shipped", table()))
    answer = found(tmp_path / "mine", tmp_path / "shipped")
    assert answer.files == paths
    assert (answer.table.at(8), answer.table.at(1024)) == (VECTOR, Product(group=16))


def test_the_users_entries_come_before_shipped_ones_of_a_nearer_device(tmp_path):
    nvl = dataclasses.replace(ORIGIN, device="NVIDIA H200 NVL")
    mine = write_table(tmp_path / "mine", table(entries=(Entry(8, VECTOR, 1.0, 2.0),), origin=nvl))
    answer = found(tmp_path / "mine", write_table(tmp_path / "shipped", table()).parent)
    assert answer.files[0] == mine
    assert answer.table.at(8) == VECTOR


def test_a_directory_that_is_given_twice_is_looked_at_once(tmp_path):
    path = write_table(tmp_path / "one", table())
    (tmp_path / "link").symlink_to(path.parent)
    again = (path.parent, path.parent, tmp_path / "one" / ".." / "one", tmp_path / "link")
    assert found(*again).files == (path,)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "null"])
def test_a_directory_that_cannot_be_is_ignored_with_the_reason(tmp_path, name):
    path = write_table(tmp_path, table())
    answer = found(Path(name), tmp_path)
    assert answer.files == (path,)
    [(ignored, why)] = answer.ignored
    assert ignored == Path(name)
    assert why.startswith("cannot be read: ")


def test_what_is_on_the_disk_is_whole_before_it_has_its_name(tmp_path, monkeypatch):
    """A crash of the machine right after must not leave an empty file under it."""
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    path = write_table(tmp_path, table())
    assert sizes == [path.stat().st_size]


def test_a_table_of_this_very_device_is_nearer(tmp_path):
    """Both are of the same GPU by another name."""
    nvl = dataclasses.replace(ORIGIN, device="NVIDIA H200 NVL")
    write_table(tmp_path, table(entries=(Entry(4, VECTOR, 1.0, 2.0),)))
    write_table(tmp_path, table(entries=(Entry(4, STREAMED, 1.0, 2.0),), origin=nvl))
    assert found(tmp_path).table.at(4) == VECTOR
    assert found(tmp_path, origin=nvl).table.at(4) == STREAMED
    assert len(found(tmp_path, origin=dataclasses.replace(ORIGIN, device="H200")).files) == 2


DAMAGED = {
    "empty": lambda path: path.write_text(""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "another kind of format": lambda path: path.write_text(path.read_text().replace('"format": 2', '"format": "2"')),
    "no object": lambda path: path.write_text("[2]"),
    "code": lambda path: path.write_text(path.read_text().replace("Problem(", "open(")),
    "directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_table_is_ignored_and_can_be_replaced(tmp_path, damage, unchecked):
    path = write_table(tmp_path, table())
    DAMAGED[damage](path)
    answer = found(tmp_path)
    assert answer.table is None
    [(_, reason)] = answer.ignored
    assert reason.startswith("cannot be read: ")
    if damage == "directory":
        with pytest.raises(OSError):
            write_table(tmp_path, table())
    else:
        write_table(tmp_path, table())
        assert found(tmp_path).table == table()
    assert len(list(tmp_path.iterdir())) == 1


NEW = (Entry(4, VECTOR, 1.0, 2.0),)


def test_a_table_in_the_format_of_another_moesaic_is_never_overwritten(tmp_path):
    path = write_table(tmp_path, table())
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    before = path.read_bytes()
    with pytest.raises(TuningError, match=r"-E128-.*json is a table in the format 3, .* writes 2: move it away"):
        write_table(tmp_path, table(entries=NEW))
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (table(origin=dataclasses.replace(ORIGIN, triton="9.9")), "another triton 9.9, not 3.6.0: move it away"),
        (table(origin=dataclasses.replace(ORIGIN, device="NVIDIA H200 NVL")), "another device of the same kind"),
        (table(backend="triton_grouped"), "another backend triton_grouped"),
        (table(problem=layer("qwen3_30b", bias=True)), "another bias True, not False"),
    ],
    ids=["triton", "device", "backend", "problem"],
)
def test_a_table_of_something_else_under_this_ones_name_is_never_overwritten(tmp_path, other, named):
    """As after a file was renamed by hand."""
    path = write_table(tmp_path, table())
    path.write_text(written(other))
    with pytest.raises(TuningError, match=named):
        write_table(tmp_path, table(entries=NEW))
    assert (read_table(path.read_text()), list(tmp_path.iterdir())) == (other, [path])


def test_a_file_that_cannot_be_read_now_is_not_overwritten(tmp_path, monkeypatch):
    path = write_table(tmp_path, table())

    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", broken)
        with pytest.raises(OSError, match="Input/output error"):
            write_table(tmp_path, table(entries=NEW))
    assert (read_table(path.read_text()), list(tmp_path.iterdir())) == (table(), [path])


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_write_that_fails_leaves_the_old_table_and_nothing_else(tmp_path, monkeypatch, step):
    path = write_table(tmp_path, table())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_table(tmp_path, table(entries=(Entry(4, VECTOR, 1.0, 2.0),)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_readers_beside_several_writers_always_see_a_whole_table(tmp_path):
    path = write_table(tmp_path, table())
    done = threading.Event()
    seen, faults = [], []

    def write(writer):
        for turn in range(10):
            write_table(tmp_path, table(entries=(Entry(2048 * (1 + writer), STREAMED, 1.0 + turn, 2.0),)))

    def read():
        while not done.is_set():
            answer = found(tmp_path)
            seen.append(len(answer.table.entries) if answer.table else 0)
            faults.extend(answer.ignored)

    reader, writers = threading.Thread(target=read), [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert faults == []
    assert min(seen) >= 4
    assert list(tmp_path.iterdir()) == [path]


def test_of_writers_at_one_moment_none_loses_the_others_entries(tmp_path):
    """Each in a process of its own, and in several threads."""
    program = """
import sys, threading
from pathlib import Path
from moesaic.tuning import Entry, write_table
from tests.tuning.examples import STREAMED, table
def write(number):
    write_table(Path(sys.argv[1]), table(entries=(Entry(number, STREAMED, 1.0, 2.0),)))
threads = [threading.Thread(target=write, args=(int(sys.argv[2]) + n,)) for n in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    begun = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(first)], env=environment)  # noqa: S603
        for first in (100, 200, 300)
    ]
    assert [process.wait() for process in begun] == [0, 0, 0]
    [path] = tmp_path.iterdir()
    rows = [entry.rows for entry in read_table(path.read_text()).entries]
    assert rows == [first + n for first in (100, 200, 300) for n in range(20)]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert read_table(write_table(tmp_path, table()).read_text()) == table()


def test_a_file_is_named_after_all_that_it_is_of():
    names = {
        file_of(each)
        for each in (
            *(table(), table(backend="triton_grouped"), table(problem=layer("qwen3_30b", bias=True))),
            *(table(origin=dataclasses.replace(ORIGIN, **c)) for c in ({"torch": "2.12.0"}, {"processors": 1})),
        )
    }
    assert len(names) == 5
    assert file_of(table()) == file_of(table(entries=()))


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [("/some/cache", "/some/cache"), ("", "~/.cache"), ("relative", "~/.cache"), (None, "~/.cache")],
)
def test_the_users_directory_is_where_xdg_has_it(monkeypatch, tmp_path, stated, wanted):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if stated is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", stated)
    assert user_cache() == Path(wanted).expanduser()
    assert user_tables() == user_cache() / "moesaic" / "tables"
    assert TableFiles.of().directories == (user_tables(), SHIPPED)
    assert TableFiles.of("elsewhere").directories == (Path("elsewhere"), SHIPPED)
    assert TableFiles.of("~/tables").directories == (tmp_path / "tables", SHIPPED)
    assert TableFiles.of("~nobody-of-that-name/x").directories == (Path("~nobody-of-that-name/x"), SHIPPED)


@pytest.mark.parametrize(
    ("model", "changes"),
    [("qwen3-30b-a3b", {}), ("mixtral-8x7b", {}), ("gpt-oss-120b", {}), ("deepseek-v3", {"num_experts": 32})],
)
def test_an_h200_finds_the_shipped_table_of_a_named_model(model, changes):
    problem = dataclasses.replace(known_model(model).problem, **changes)
    answer = found(SHIPPED, problem=problem)
    assert [entry.rows for entry in answer.table.entries] == [2**n for n in range(15)]
    assert found(SHIPPED, problem=problem, origin=dataclasses.replace(ORIGIN, triton="3.7.1")).table is None


def test_what_is_shipped_is_whole_and_rightly_named():
    assert SHIPPED.is_dir()
    for path in SHIPPED.glob("*.json"):
        read = read_table(path.read_text(encoding="utf-8"))
        assert path.name == file_of(read)
        assert read.entries
        assert read.origin.kernels == fingerprint(), "the kernels have changed since: measure it again, or remove it"
        assert written(read) == path.read_text(encoding="utf-8")
