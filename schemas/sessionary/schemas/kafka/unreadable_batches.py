"""Batches that stay in a log although librdkafka cannot read them.

It reports such a batch by a message with an error and the offset at which the batch begins. One
that cannot be unpacked is fetched again without end; one with a wrong checksum is left out, so that
the next message is of a later batch.
"""

from typing import Final

from confluent_kafka import KafkaError, Message

_CODES: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,  # damaged, or zstd that unpacks to more than receive.message.max.bytes
        KafkaError._BAD_MSG,  # another checksum than the batch's own (with check.crcs)
        KafkaError._NOT_IMPLEMENTED,  # a format or a codec that this librdkafka does not know
    }
)


def is_unreadable_batch(message: Message) -> bool:
    """Return whether a message reports a batch that cannot be read; its offset is the batch's."""
    error, offset = message.error(), message.offset()
    return error is not None and error.code() in _CODES and offset is not None and offset >= 0


def describe_unreadable_batch(message: Message) -> str:
    """Return which batch `message` reports, what is wrong with it, and what may be the cause."""
    error = message.error()
    return (
        f"the batch that begins at offset {message.offset()} of {message.topic()} cannot be read: "
        f"{error.str() if error is not None else 'unknown'}. It is damaged, or unpacks to more than librdkafka takes "
        "(with zstd 100 MB, in some cases only 33 MB)"
    )


# What an operator can do about a batch that a client sent.
HELP: Final = (
    "If it is damaged, bring a replica back that has it intact; otherwise skip the batch: sessionary partition skip "
    "with this offset. The sink of the history leaves it out too, once the audit trail in ClickHouse says so. Find the "
    "client that sent it"
)
