"""How parts of a list are merged."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.signatures import NO_KEYS, SigningKeys
from sessionary.stream_processors.api.lists import ListPart, cursor_of, merge_parts, parse_cursor


def part_of(partition: int, keys: set[bytes], after: bytes, limit: int) -> ListPart:
    """Return what a partition with these rows answers."""
    left = sorted(key for key in keys if key > after)
    end = left[limit - 1] if len(left) > limit else None
    return ListPart([(key, {"key": key}) for key in left[:limit]], end, {f"{partition}": 7})


@given(
    st.lists(st.sets(st.binary(min_size=1, max_size=3), max_size=12), min_size=1, max_size=4),
    st.integers(1, 5),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
)
def test_pages_in_sequence_have_every_row_once_and_in_order(
    partitions: list[set[bytes]], limit: int, reads: list[int]
) -> None:
    """A partition reads as many rows as `reads` says, which may be fewer than the page may have."""
    found: list[bytes] = []
    after: bytes | None = b""
    while after is not None:
        parts = [part_of(n, keys, after, min(limit, reads[n])) for n, keys in enumerate(partitions)]
        merged = merge_parts(parts, limit)
        assert len(merged.rows) <= limit
        found += [key for key, _ in merged.rows]
        after = merged.end
    assert found == sorted(set().union(*partitions))


def test_a_merged_list_names_the_partitions_that_answered() -> None:
    merged = merge_parts([ListPart((), None, {"0": 5}), ListPart((), None, {"2": 9})], 10)
    assert merged == ListPart([], None, {"0": 5, "2": 9})
    assert merge_parts([], 10) == ListPart([], None, {})


FORMER, KEYS = (SigningKeys({name: 32 * name[-1] for name in names}) for names in (["k1"], ["k2", "k1"]))


@given(st.binary(min_size=1, max_size=100))
def test_a_cursor_is_read_back_also_by_workers_that_know_its_key_only_as_a_former_one(key: bytes) -> None:
    assert [parse_cursor(cursor_of(key, keys), KEYS) for keys in (FORMER, KEYS)] == [key, key]
    with pytest.raises(ValueError, match="no key"):
        parse_cursor(cursor_of(key, KEYS), FORMER)


def test_a_cursor_names_no_row() -> None:
    """The last row that was read may be another user's."""
    key = b"0192f6a0-7c1e-7d90-a2c4-111213141516"
    sealed = base64.urlsafe_b64decode(cursor_of(key, KEYS) + "==")
    assert not any(part in sealed for part in (key[:8], key[-12:]))
    assert {cursor_of(key, KEYS), cursor_of(key, FORMER), cursor_of(key, NO_KEYS)} != {cursor_of(key, KEYS)}
    assert cursor_of(key + b"a", KEYS)[:20] != cursor_of(key + b"b", KEYS)[:20]


@pytest.mark.parametrize(
    "text", ["", "a", "a b", "ä", "a+/=", "x" * 3_000, base64.urlsafe_b64encode(40 * b"s").decode()]
)
def test_another_text_is_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_cursor(text, KEYS)
