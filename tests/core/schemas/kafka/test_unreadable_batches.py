"""Which messages report a batch that cannot be read."""

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.schemas.kafka.unreadable_batches import describe_unreadable_batch, is_unreadable_batch


def report(code: int | None, offset: int = 5) -> Message:
    error = None if code is None else KafkaError(code, "Decompression (codec 0x4) failed")
    return Message(topic="events", partition=2, offset=offset, error=error)


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED])
def test_an_error_of_a_batch_names_its_offset(code: int) -> None:
    assert is_unreadable_batch(report(code))
    assert is_unreadable_batch(report(code, 0))
    assert not is_unreadable_batch(report(code, -1001)), "an error of the connection has no offset"


@pytest.mark.parametrize(
    "code", [None, KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._AUTO_OFFSET_RESET]
)
def test_other_messages_report_none(code: int | None) -> None:
    assert not is_unreadable_batch(report(code))


def test_the_description_has_the_place_and_the_cause() -> None:
    text = describe_unreadable_batch(report(KafkaError._BAD_COMPRESSION))
    for part in ("offset 5 of events", "Decompression (codec 0x4) failed", "100 MB"):
        assert part in text
