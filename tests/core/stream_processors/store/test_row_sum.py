"""The sum of a partition's rows follows each change, and differs if a row is missing or stale."""

from hypothesis import given
from hypothesis import strategies as st

from sessionary.stream_processors.store.row_sum import RowSum, sum_rows

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
