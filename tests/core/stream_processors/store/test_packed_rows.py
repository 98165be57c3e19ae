"""Packed rows: the same rows, decoded on demand; deadlines are known without decoding."""

import json
import struct
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import encode_record
from sessionary.schemas.codec.formats import record_format
from sessionary.schemas.codec.framing import record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.headers import Headers
from sessionary.schemas.records import SessionContent, SessionState, Tick, Tombstone
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import Snapshot
from sessionary.stream_processors.core.model import DueRow, RowFate
from sessionary.stream_processors.core.rows import RowKind
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.core.session.row_size import CONTENT_CHARACTERS_MAX
from sessionary.stream_processors.core.session.rows import SessionRows
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import (
    CONTENT_SUFFIX,
    DUE_HEADER,
    ChangelogRecords,
    FamilyCodec,
    PackedRow,
    RowSum,
    sum_rows,
)
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory
from tests.support.second_rules import SECOND_RULES

RULES = NEWEST_RULES.version

FAMILY = SessionRows()
ROWS = FamilyCodec([FAMILY])
CONTENT_KEY = b"k" + CONTENT_SUFFIX
GRAVE = Tombstone("acme", "s", (), "closed", 1, 7, 99_000)
SNAPSHOT = Snapshot("s1", None, 1, "{}", None, "", "full", "none")
SESSION_FATE, GRAVE_FATE = RowFate(live=True, is_counted=True), RowFate(live=False, is_packed=True)


def due_rows_of(kept: CachedRows) -> list[DueRow]:
    return [DueRow(key, due_ms, rows.fate) for rows in kept.due_rows() for due_ms, key in rows.pairs()]


@pytest.fixture(scope="module")
def rows() -> dict[bytes, SessionRow]:
    """A session in each of several states, and a tombstone."""
    rig = OracleRig()
    idle, active = EventFactory("idle"), EventFactory("active")
    rig.send(idle, "session_created")
    rig.start(active)
    return {**rig.fold.rows, b"grave": GRAVE}


def test_a_packed_row_is_the_same_row_and_tells_its_deadline_undecoded(rows: dict[bytes, SessionRow]) -> None:
    for key, row in rows.items():
        packed = ROWS.pack(row, RULES)
        assert packed.value == encode_record(row)
        assert encode_record(ROWS.unpack(packed.stored)) == packed.value
        fate = GRAVE_FATE if row is GRAVE else SESSION_FATE
        assert ROWS.due_stored_row(key, packed.stored) == DueRow(key, FAMILY.due_ms(row), fate)
        assert ROWS.due_row(key, row) == ROWS.due_stored_row(key, packed.stored)
    assert FAMILY.due_ms(GRAVE) == 99_000
    assert [FAMILY.due_ms(row) for row in rows.values() if not isinstance(row, Tombstone)] == [
        FAMILY.deadline(row).due_ms for row in rows.values() if not isinstance(row, Tombstone)
    ]


def test_usual_changelog_records_are_taken_at_once_up_to_one_that_is_not(rows: dict[bytes, SessionRow]) -> None:
    row = next(iter(rows.values()))
    packed, content = ROWS.pack(row, RULES), encode_record(SessionContent("{}", SNAPSHOT))
    due = [(DUE_HEADER, packed.due)]
    usual: list[tuple[bytes | None, bytes | None, Headers | None, bytes | None]] = [
        (b"row", packed.value, due, packed.stored),
        (CONTENT_KEY, content, None, content),
        (b"content with a header", content, due, content),
        (b"gone", None, None, None),
        (None, packed.value, due, packed.stored),
    ]
    unusual: list[tuple[bytes, Headers | None]] = [
        (packed.value, None),
        (packed.value, [*due, ("more", b"")]),
        (packed.value, [("other", packed.due)]),
        (packed.value, [(DUE_HEADER, None)]),
        (packed.value, [(DUE_HEADER, b"odd")]),
        (b"\xc3\x01unknown of a later release", due),
        (b"", due),
    ]
    keys, values, all_headers = [r[0] for r in usual], [r[1] for r in usual], [r[2] for r in usual]
    for value, headers in unusual:
        records = ChangelogRecords(
            [*keys, b"odd", *keys], [*values, value, *values], [*all_headers, headers, *all_headers]
        )
        taken: dict[bytes, bytes | None] = {}
        assert ROWS.repack_usual(records, 0, taken) == len(usual)
        assert taken == {key or b"": stored for key, _, _, stored in usual}
        taken.clear()
        assert ROWS.repack_usual(records, len(usual), taken) == len(usual)
        assert taken == {}
        assert ROWS.repack_usual(records, len(usual) + 1, taken) == 2 * len(usual) + 1
        assert list(taken) == [key or b"" for key, _, _, _ in usual]


def test_a_changelog_record_is_kept_as_it_stands_where_it_says_its_deadline(rows: dict[bytes, SessionRow]) -> None:
    for row in rows.values():
        packed = ROWS.pack(row, RULES)
        assert ROWS.repack(packed.value, packed.due) == packed.stored
        assert ROWS.repack(packed.value, None) == packed.stored  # of a release that wrote no header
        assert ROWS.repack(packed.value, b"odd") == packed.stored
        other = struct.pack(">q", 1)
        assert ROWS.repack(packed.value, other)[:8] == other  # it was not decoded, else it would know better


@pytest.mark.parametrize("value", [b"", b"\xc3\x01 broken", encode_record(Tick("w1"))])
def test_what_is_no_row_is_not_taken_for_one(value: bytes) -> None:
    with pytest.raises(DecodeError):
        ROWS.repack(value, bytes(8))


@pytest.mark.interpreted  # a class below a compiled one
def test_rows_are_read_from_the_shelf_and_those_used_last_stay_decoded(
    rows: dict[bytes, SessionRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bytes] = []

    class Counted(FamilyCodec):
        def unpack(self, stored: bytes, read_content: Callable[[], bytes | None] = lambda: None) -> Any:
            reads.append(stored)
            return super().unpack(stored, read_content)

    kept = CachedRows({key: ROWS.pack(row, RULES).stored for key, row in rows.items()}, Counted([FAMILY]))
    monkeypatch.setattr(CachedRows, "RECENT_MAX", 2)
    first, second, third = rows
    assert kept[first] is kept[first]
    assert kept[second] is kept[second]
    assert len(reads) == 2
    assert kept[third] is kept[third]  # the one used longest ago goes
    assert kept[second] is kept[second]
    assert len(reads) == 3
    assert kept[first] is kept[first]
    assert len(reads) == 4


@pytest.mark.interpreted  # a class below a compiled one
def test_few_large_rows_stay_decoded(rows: dict[bytes, SessionRow]) -> None:
    reads: list[bytes] = []

    class Counted(FamilyCodec):
        def unpack(self, stored: bytes, read_content: Callable[[], bytes | None] = lambda: None) -> Any:
            reads.append(stored)
            return super().unpack(stored, read_content)

    session = next(row for row in rows.values() if isinstance(row, SessionState))
    large = session._replace(state_json='"' + 200_000 * "ä" + '"')
    shelf = {b"%d" % n: ROWS.pack(large, RULES).stored for n in range(100)}
    kept = CachedRows(shelf, Counted([FAMILY]))
    for key in shelf:
        kept[key] = large
    kept.mark_saved(shelf)
    for key in reversed(shelf):  # those that are decoded come first
        assert kept[key].version == 1
    decoded = len(shelf) - len(reads)
    assert 0 < decoded * 400_000 <= CachedRows.RECENT_BYTES_MAX
    reads.clear()
    for key in shelf:
        assert kept[key].version == 1
    assert decoded - 1 <= len(shelf) - len(reads) <= decoded + 1


def test_a_row_that_is_set_often_counts_once(rows: dict[bytes, SessionRow]) -> None:
    session = next(row for row in rows.values() if isinstance(row, SessionState))
    large = session._replace(state_json=1_000_000 * "a")
    kept = CachedRows({}, ROWS)
    for _ in range(100):
        kept[b"first"] = kept[b"second"] = large
        del kept[b"second"]
    assert kept._recent == {b"first": large}
    assert kept._recent_bytes == ROWS.estimate_bytes(large)
    kept.forget_unsaved()
    assert kept._recent_bytes == 0


def test_what_is_set_rules_until_it_is_on_the_shelf(rows: dict[bytes, SessionRow]) -> None:
    shelf = {key: ROWS.pack(row, RULES).stored for key, row in rows.items()}
    kept, (first, second, third) = CachedRows(shelf, ROWS), rows
    assert kept[first] is kept[first]
    kept[first] = GRAVE
    del kept[second]
    assert (kept[first], kept.get(second), len(kept)) == (GRAVE, None, 2)
    assert set(due_rows_of(kept)) == {DueRow(first, 99_000, GRAVE_FATE), DueRow(third, 99_000, GRAVE_FATE)}
    shelf[first] = ROWS.pack(GRAVE, RULES).stored
    del shelf[second]
    kept.mark_saved({first: None, second: None})
    assert kept.unsaved == {}
    assert dict(kept) == {first: GRAVE, third: GRAVE}
    kept[third] = GRAVE._replace(epoch=2)
    kept.forget_unsaved()
    assert kept[third] == GRAVE
    with pytest.raises(KeyError):
        del kept[b"unknown"]


def test_a_row_that_is_looked_at_once_is_the_same_and_does_not_stay_decoded(rows: dict[bytes, SessionRow]) -> None:
    kept = CachedRows({key: ROWS.pack(row, RULES).stored for key, row in rows.items()}, ROWS)
    first, second, third = rows
    assert [kept.peek(key) for key in (*rows, b"unknown")] == [*rows.values(), None]
    assert kept._recent == {}
    kept[first] = GRAVE
    del kept[second]
    assert [kept.peek(key) for key in (first, second)] == [GRAVE, None]
    assert kept[third] is kept.peek(third)


def test_a_row_that_cannot_be_read_stops_the_partition_by_name() -> None:
    with pytest.raises(Halted) as caught:
        CachedRows({b"acme:s": bytes(8) + b"\xc3\x01broken"}, ROWS)[b"acme:s"]
    assert caught.value.reason == "changelog_unreadable"
    assert "acme:s" in str(caught.value)


def large_row(rows: dict[bytes, SessionRow]) -> SessionState:
    session = next(row for row in rows.values() if isinstance(row, SessionState))
    return session._replace(state_json=json.dumps("ä" * CONTENT_CHARACTERS_MAX))


def test_a_large_content_is_a_record_of_its_own(rows: dict[bytes, SessionRow]) -> None:
    row = large_row(rows)
    packed = ROWS.pack_changes({b"k": row}, RULES)
    rest, content = packed[b"k"], packed[CONTENT_KEY]
    assert rest is not None
    assert content is not None
    assert content == (b"", encode_record(SessionContent(row.state_json, row.snapshot)))
    assert ROWS.repack(content.value, None) == content.stored == content.value
    assert ROWS.repack(rest.value, rest.due) == ROWS.repack(rest.value, None) == rest.stored
    assert rest.due == ROWS.pack(row, RULES).due
    assert ROWS.unpack(rest.stored, lambda: content.stored) == ROWS.unpack(ROWS.pack(row, RULES).stored)
    assert list(ROWS.pack_changes({b"k": row}, RULES, {CONTENT_KEY: content.stored}.get)) == [b"k"]
    for after in (GRAVE, None, row._replace(state_json="{}")):
        gone = ROWS.pack_changes({b"k": after}, RULES, {CONTENT_KEY: content.stored}.get)
        assert (list(gone), gone[CONTENT_KEY]) == ([b"k", CONTENT_KEY], None)
        assert list(ROWS.pack_changes({b"k": after}, RULES)) == [b"k"]


def test_a_content_is_no_row_of_its_own(rows: dict[bytes, SessionRow]) -> None:
    row = large_row(rows)
    packed = ROWS.pack_changes({b"k": row, b"grave": GRAVE}, RULES)
    kept = CachedRows({key: value.stored for key, value in packed.items() if value is not None}, ROWS)
    assert sorted(kept) == [b"grave", b"k"]
    assert set(due_rows_of(kept)) == {
        DueRow(b"k", FAMILY.due_ms(row), SESSION_FATE),
        DueRow(b"grave", 99_000, GRAVE_FATE),
    }
    assert kept.get(CONTENT_KEY) is None
    assert encode_record(kept[b"k"]) == encode_record(row)
    assert kept._recent_bytes > 2 * CONTENT_CHARACTERS_MAX  # of the content too


@pytest.mark.parametrize("content", [None, encode_record(GRAVE), b"\xc3\x01broken"])
def test_a_row_without_its_content_stops_the_partition_by_name(
    rows: dict[bytes, SessionRow], content: bytes | None
) -> None:
    packed = ROWS.pack_changes({b"k": large_row(rows)}, RULES)[b"k"]
    assert packed is not None
    kept = CachedRows({b"k": packed.stored, **({} if content is None else {CONTENT_KEY: content})}, ROWS)
    with pytest.raises(Halted) as caught:
        kept[b"k"]
    assert caught.value.reason == "changelog_unreadable"


class CountingRows(SessionRows):
    """Rows of a process that knows the second rules, and counts what it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded = 0
        graves = RowKind(Tombstone, live=False, prefixes=record_headers(Tombstone), encode=encode_record)
        self.kinds = (self.kinds[0], graves)

    def decode(self, value: bytes) -> Any:
        self.decoded += 1
        return super().decode(value)


def test_one_walk_tells_what_three_would(rows: dict[bytes, SessionRow]) -> None:
    many = {b"%b%d" % (key, number): row for number in range(3) for key, row in rows.items()}
    packed = ROWS.pack_changes({**many, b"k": large_row(rows)}, RULES)
    shelf = {key: value.stored for key, value in packed.items() if value is not None}
    survey = ROWS.survey_rows(shelf.items(), counts=True)
    assert survey.row_sum == sum_rows(shelf.items())
    assert ROWS.survey_rows(shelf.items(), counts=False) == survey._replace(row_sum=None)
    found = {DueRow(key, due_ms, rows.fate) for rows in survey.due_rows for due_ms, key in rows.pairs()}
    assert found == {ROWS.due_stored_row(key, shelf[key]) for key in shelf if key != CONTENT_KEY}
    sizes = {key: len(key) + len(stored) for key, stored in shelf.items()}
    graves = sum(size for key, size in sizes.items() if key.startswith(b"grave"))
    assert survey.layer_bytes == {
        "rows": sum(sizes.values()) - sizes[CONTENT_KEY] - graves,
        "contents": sizes[CONTENT_KEY],
        "tombstones": graves,
    }


def recovery_calls(codec: FamilyCodec, packed: PackedRow) -> int:
    """Return how many calls make a row of a store, and a timer, of a changelog's record."""
    calls = 0

    def count_call(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count_call)
    try:
        codec.survey_rows([(b"k", codec.repack(packed.value, packed.due))], counts=False)
    finally:
        sys.setprofile(None)
    return calls


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
CHANGES = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=9))), max_size=8)


@given(CHANGES)
def test_a_sum_that_followed_each_change_is_that_of_the_rows(changes: list[dict[bytes, bytes | None]]) -> None:
    rows: dict[bytes, bytes] = {}
    total = RowSum()
    for change in changes:
        total = total.replace_rows(change, rows.get)
        for key, stored in change.items():
            if stored is None:
                rows.pop(key, None)
            else:
                rows[key] = stored
        assert total == sum_rows(rows.items())
    assert total == sum_rows(reversed(rows.items()))
    assert 0 <= total.checksum < 1 << 63


def test_a_row_that_is_missing_stale_or_under_another_key_changes_the_sum() -> None:
    rows = {b"a": b"new", b"b": b"row"}
    total = sum_rows(rows.items())
    assert total == sum_rows([(b"b", b"row"), (b"a", b"new")])
    for other in ({b"a": b"new"}, {b"a": b"old", b"b": b"row"}, {b"a": b"row", b"b": b"new"}):
        assert sum_rows(other.items()) != total
    assert RowSum().replace_rows({b"a": None}, lambda _key: None) == RowSum()


@pytest.mark.interpreted  # a compiled family has no heirs
@pytest.mark.usefixtures("second_rules")
def test_rows_of_an_older_form_are_recovered_undecoded_at_the_cost_of_new_ones() -> None:
    family = CountingRows()
    codec, former = FamilyCodec([family]), ROWS.pack(GRAVE, RULES)
    later = codec.pack(GRAVE, SECOND_RULES.version)
    assert former.value[:10] == record_format(Tombstone, RULES).header
    assert later.value[:10] == record_format(Tombstone, SECOND_RULES.version).header != former.value[:10]
    assert recovery_calls(codec, former) == recovery_calls(codec, later)
    usual: dict[bytes, bytes | None] = {}
    records = ChangelogRecords(
        [b"a", b"b"], [former.value, later.value], [[(DUE_HEADER, former.due)], [(DUE_HEADER, later.due)]]
    )
    assert codec.repack_usual(records, 0, usual) == 2
    assert usual == {b"a": former.stored, b"b": later.stored}
    assert family.decoded == 0
    # The row is read, and written in the new form, when it is next touched.
    read = codec.unpack(codec.repack(former.value, former.due))
    assert (family.decoded, read) == (1, GRAVE)
    assert codec.pack(read, SECOND_RULES.version) == later
    assert codec.unpack(later.stored) == GRAVE
