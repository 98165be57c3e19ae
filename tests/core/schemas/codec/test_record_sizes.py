"""Records that exceed their topic's limit: what is cut first, and what stays."""

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.codec.record_sizes import KEY_BYTES_MAX, LIST_MAX, TEXT_MAX, batch_bytes, encode_to_fit
from sessionary.schemas.records import AuditRecord, Position, RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES, REJECTED_BYTES_MAX
from sessionary.schemas.topics import TopicNames, record_bytes_limits
from tests.support.sink_records import NOW_US, audit_record

MIB = 1 << 20
LIMIT = REJECTED_BYTES_MAX


def letter(**fields: object) -> RejectedEvent:
    record = RejectedEvent(
        "undecodable", "why", False, "acme", "s", "e", None, None, "t.events", 1, 5, NOW_US, b"k", b"v", {"h": b"1"}
    )
    return record._replace(**fields)  # type: ignore[arg-type]


def fitted_letter(record: RejectedEvent, key: bytes | None = b"k") -> tuple[bytes | None, RejectedEvent]:
    found, value = encode_to_fit(key, record, LIMIT, NEWEST_RULES.version)
    assert batch_bytes(found, value) <= LIMIT
    decoded = Decoder().decode_record(value)
    assert isinstance(decoded, RejectedEvent)
    return found, decoded._replace(headers=dict(decoded.headers))


@pytest.mark.parametrize(
    ("key", "value", "size"),
    [
        (None, None, 61 + 1 + 6),
        (b"", b"", 61 + 1 + 6),
        (b"k" * 10, b"v" * 46, 61 + 1 + 62),
        (None, b"v" * 57, 61 + 1 + 63),
        (None, b"v" * 58, 61 + 2 + 64),
    ],
)
def test_a_batch_of_one_record_has_the_size_of_its_format(key: bytes | None, value: bytes | None, size: int) -> None:
    assert batch_bytes(key, value) == size


def test_a_record_that_fits_exactly_stays_as_it_is() -> None:
    room = LIMIT - batch_bytes(b"k", encode_record(letter(value=b"v" * MIB))) + MIB
    fits = letter(value=b"v" * room)
    assert encode_to_fit(b"k", fits, LIMIT, NEWEST_RULES.version) == (b"k", encode_record(fits))
    assert batch_bytes(b"k", encode_record(fits)) == LIMIT
    _, larger = fitted_letter(letter(value=b"v" * (room + 1)))
    assert larger.value is None


def test_long_texts_are_cut_before_the_value_is_left_out() -> None:
    value = b"v" * (1_900 * 1_024)
    key, found = fitted_letter(letter(event_id="i" * MIB, detail="d" * MIB, value=value))
    assert key == b"k"
    assert found == letter(event_id="i" * TEXT_MAX + "…", detail="d" * TEXT_MAX + "…", value=value)


def test_a_value_that_does_not_fit_is_left_out_with_the_headers_and_the_letter_says_so() -> None:
    for large in (letter(value=b"v" * 3 * MIB), letter(value=b"v", headers={"h": b"1" * 3 * MIB})):
        _, found = fitted_letter(large)
        assert (found.key, found.value, found.headers) == (b"k", None, {})
        assert found.detail.startswith(f"why (value of {len(large.value or b'')} bytes left out, headers too")


def test_a_key_that_does_not_fit_is_cut_and_the_value_stays_if_it_can() -> None:
    long_key = b"\xff" * 3 * MIB
    for value, kept in ((b"v", b"v"), (b"v" * 3 * MIB, None)):
        key, found = fitted_letter(letter(key=long_key, value=value), long_key)
        assert key == found.key == long_key[:KEY_BYTES_MAX]
        assert found.value == kept


def test_texts_and_lists_of_an_audit_record_are_cut() -> None:
    long = audit_record(1, 1, reason="r" * MIB, actions_done=("a" * MIB, *("b",) * MIB), user_id="é" * MIB)
    key, value = encode_to_fit(b"k" * MIB, long, MIB, NEWEST_RULES.version)
    assert batch_bytes(key, value) <= MIB
    found = Decoder().decode_record(value)
    assert isinstance(found, AuditRecord)
    assert (found.reason, found.user_id) == ("r" * TEXT_MAX + "…", "é" * TEXT_MAX + "…")
    assert found.actions_done == ("a" * TEXT_MAX + "…", *("b",) * (LIST_MAX - 1), "…")
    assert found._replace(reason="", user_id="u1", actions_done=()) == audit_record(1, 1)


def test_a_record_whose_every_text_and_list_is_long_fits_the_smallest_limit() -> None:
    texts = {name: "😀" * MIB for name, kind in AuditRecord.__annotations__.items() if kind in (str, str | None)}
    lists = dict.fromkeys(("cleanup_actions", "actions_done", "actions_failed"), ("😀" * 2_000,) * 99)
    record = audit_record(1, 1)._replace(**texts, **lists)  # type: ignore[arg-type]
    assert batch_bytes(*encode_to_fit(b"k", record, 512 << 10, NEWEST_RULES.version)) <= 512 << 10


def test_each_topic_has_a_limit() -> None:
    limits = record_bytes_limits()
    assert tuple(limits) == TopicNames._fields
    assert limits["rejected"] == limits["sink_rejected"] == REJECTED_BYTES_MAX
    assert min(limits.values()) >= 1_048_588


def test_a_record_without_texts_is_not_cut() -> None:
    position = Position(1, 2, 3, 4, 5)
    assert encode_to_fit(None, position, 512 << 10, NEWEST_RULES.version) == (None, encode_record(position))
