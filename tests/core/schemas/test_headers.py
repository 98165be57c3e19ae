import pytest
from confluent_kafka import Message

from sessionary.schemas.headers import (
    UNREADABLE_HEADERS,
    Headers,
    HeaderSource,
    find_traceparent,
    find_transaction,
    header_pairs,
    read_each_headers,
    read_headers,
)
from tests.support.broken_headers import BrokenMessage

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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


def test_headers_are_read_as_the_driver_gives_them() -> None:
    assert read_headers(Message("t", 0, 1, headers=[("a", b"1"), ("a", None)])) == [("a", b"1"), ("a", None)]
    assert read_headers(Message("t", 0, 1)) is None


def test_headers_that_cannot_be_read_are_asked_for_once() -> None:
    broken = BrokenMessage()
    for _ in range(3):
        assert header_pairs(read_headers(broken)) == list(UNREADABLE_HEADERS)


def test_headers_of_many_messages_are_asked_for_once_too() -> None:
    named = Message("t", 0, 1, headers=[("a", b"1")])
    messages: list[HeaderSource] = [
        BrokenMessage(),
        named,
        Message("t", 0, 1),
        BrokenMessage(),
        BrokenMessage(),
        named,
        BrokenMessage(),
    ]
    unreadable = list(UNREADABLE_HEADERS)
    for _ in range(2):
        assert read_each_headers(messages) == [
            *(unreadable, [("a", b"1")], None, unreadable),
            *(unreadable, [("a", b"1")], unreadable),
        ]
    assert read_each_headers([]) == []


def test_no_header_that_a_client_reads_has_the_name_that_stands_for_unreadable_ones() -> None:
    ((name, _),) = UNREADABLE_HEADERS
    assert "\0" in name  # librdkafka ends a name there


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], None),
        ([("ce_id", b"1"), ("traceparent", TRACE.encode())], TRACE.encode()),
        ([("traceparent", TRACE.encode() + b"0")], None),
        ([("traceparent", b"\xff" * 55)], None),
        ([("traceparent", None)], None),
        (UNREADABLE_HEADERS, None),
    ],
)
def test_only_a_well_formed_trace_context_is_found(headers: Headers, found: bytes | None) -> None:
    assert find_traceparent(headers) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"3:128", (3, 128)),
        (b"0:9223372036854775807", (0, (1 << 63) - 1)),
        *((value, None) for value in (None, b"", b"3", b"3:", b":1", b"-1:1", b"3:1:1", b"3:" + b"9" * 5_000)),
    ],
)
def test_a_transaction_is_read_from_its_header_or_is_unknown(
    value: bytes | None, found: tuple[int, int] | None
) -> None:
    assert find_transaction([("other", b"1:1"), ("transaction", value)]) == found
    assert find_transaction([("other", b"1:1")]) is None
