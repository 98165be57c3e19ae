"""How parts of a list are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.binary(min_size=1, max_size=100))
def test_a_cursor_is_read_back(key: bytes) -> None:
    assert parse_cursor(cursor_of(key)) == key


@pytest.mark.parametrize("text", ["", "a", "a b", "ä", "a+/=", "x" * 3_000])
def test_another_text_is_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_cursor(text)
