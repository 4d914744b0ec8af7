"""What `moesaic tune` does to the tables that are there already, of this process and of others."""

import dataclasses

import pytest

from moesaic.errors import TuningError
from moesaic.tuning import Entry, Origin, Table, read_table, write_table
from tests.cli.tunable_stub import HERE, PROBLEM, Spoiled, ToldClock, tried, tuned


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path):
    """It measures 8 again while this one is busy with 90."""
    backend = Spoiled()
    tuned(tmp_path, backend, ToldClock(backend), counts=(8,))
    [path] = tmp_path.iterdir()
    newer = dataclasses.replace(read_table(path.read_text()), entries=(Entry(8, tried(8)[1][1], 1.0, 2.0),))

    class Meanwhile(ToldClock):
        def seconds(self, call):
            write_table(tmp_path, newer)
            return super().seconds(call)

    sizes = tuned(tmp_path, backend, Meanwhile(backend), counts=(8, 90))
    assert [size.rows for size in sizes] == [8, 90]
    table = read_table(path.read_text())
    assert [entry.rows for entry in table.entries] == [8, 90]
    assert table.entries[0] == newer.entries[0]


def test_what_a_device_of_another_name_measured_stays_under_that_name(tmp_path):
    backend = Spoiled()
    origin = dataclasses.replace(Origin.of(HERE), device="the same by another name")
    theirs = write_table(tmp_path, Table("spoiled", PROBLEM, origin, (Entry(8, tried(8)[0], 1.0, 2.0),)))
    known, new = tuned(tmp_path, backend, ToldClock(backend), counts=(8, 90))
    assert (known.file, known.entry.microseconds) == (None, 1.0)
    assert new.file != theirs
    mine = read_table(new.file.read_text())
    assert (mine.origin, [entry.rows for entry in mine.entries]) == (Origin.of(HERE), [90])


def test_a_file_that_must_not_be_replaced_is_an_error_before_anything_is_measured(tmp_path):
    backend = Spoiled()
    tuned(tmp_path, backend, ToldClock(backend), counts=(8,))
    [path] = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    backend.ran.clear()
    with pytest.raises(TuningError, match="in the format 3"):
        tuned(tmp_path, backend, ToldClock(backend), counts=(90,))
    assert backend.ran == []
