import pytest

from sessionary.schemas.headers import header_pairs


@pytest.mark.parametrize(
    ("headers", "pairs"),
    [
        (None, []),
        ([], []),
        ([("a", b"\xff"), ("a", None)], [("a", b"\xff"), ("a", b"")]),
        ((("a", "é"),), [("a", b"\xc3\xa9")]),
        ({"a": b"1", "b": "2", "c": None}, [("a", b"1"), ("b", b"2"), ("c", b"")]),
    ],
)
def test_headers_of_every_type_that_the_driver_declares_become_pairs(
    headers: dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]] | None, pairs: list[tuple[str, bytes]]
) -> None:
    assert header_pairs(headers) == pairs
