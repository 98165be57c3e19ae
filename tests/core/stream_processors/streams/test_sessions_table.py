"""The table of sessions as a Faust table: reads go to the rows, writes are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import pytest

from sessionary.schemas.ids import partition_of
from sessionary.stream_processors.errors import NotLocal, ReadOnly
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.streams.sessions_table import SessionsTable
from tests.core.stream_processors.streams.local_rows import PARTITIONS, PartitionedRows

AWAY = 3  # the partition of another worker


@pytest.fixture
def rows() -> PartitionedRows:
    assert partition_of(b"acme:unknown", PARTITIONS) != AWAY
    return PartitionedRows(*(set(range(PARTITIONS)) - {AWAY}))


@pytest.fixture
def table(rows: Any, tmp_path: Path) -> SessionsTable:
    return SessionsTable(make_faust_app(ProcessorSettings(), str(tmp_path)), rows, PARTITIONS)


def test_it_reads_as_any_table_of_faust(table: SessionsTable, rows: PartitionedRows) -> None:
    local = sorted(set(rows.keys) - set(rows.keys_of(AWAY)))
    assert isinstance(table, faust.Table)
    assert sorted(table) == sorted(table.keys()) == [key for key, _ in sorted(table.items())] == local
    assert len(table) == len(list(table.values())) == len(local)
    assert table[local[0]] == table.get(local[0].encode()) == dict(table.items())[local[0]]
    assert local[0] in table
    assert "acme:unknown" not in table
    assert table.get("acme:unknown", "absent") == "absent"
    with pytest.raises(KeyError):
        table["acme:unknown"]


def test_a_session_elsewhere_is_no_unknown_session(table: SessionsTable, rows: PartitionedRows) -> None:
    away = rows.keys_of(AWAY)[0]
    for read in (table.get, table.__getitem__, table.__contains__):
        with pytest.raises(NotLocal):
            read(away)


WRITES: list[Callable[[Any, str], object]] = [
    lambda table, key: table.__setitem__(key, None),
    lambda table, key: table.__delitem__(key),
    lambda table, key: table.pop(key),
    lambda table, key: table.pop("acme:unknown", None),
    lambda table, key: table.popitem(),
    lambda table, key: table.setdefault(key, None),
    lambda table, key: table.update({key: None}),
    lambda table, key: table.raw_update({key: None}),
    lambda table, key: table.clear(),
    lambda table, key: table.send_changelog(0, key, None),
    lambda table, key: table.reset_state(),
    lambda table, key: table.tumbling(10.0),
    lambda table, key: table.hopping(10.0, 5.0),
]


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_refused_and_changes_nothing(
    table: SessionsTable, rows: PartitionedRows, write: Callable[[Any, str], object]
) -> None:
    key = rows.keys_of(0)[0]
    before = table[key]
    with pytest.raises(ReadOnly, match="read-only: a session changes by events only"):
        write(table, key)
    assert table[key] == before


def test_faust_recovers_nothing_for_it(table: SessionsTable) -> None:
    assert dict(table.app.tables) == {}
    assert table.app.tables.changelog_topics == set()
    assert list(table.app.topics) == []
