"""Dead letters: their size, and a producer that reaches no broker."""

import pytest
from confluent_kafka import KafkaError

from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.rules import REJECTED_BYTES_MAX
from sessionary.sinks.errors import Transient
from sessionary.sinks.runtime.dead_letter_producer import DeadLetterProducer, encode_letter
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.samples import DECODER, raw_record
from tests.support.mock_cluster import mock_cluster


def test_a_value_too_large_for_a_letter_is_left_out_and_the_letter_says_so() -> None:
    fits, large = raw_record(b"v" * 1_000_000), raw_record(b"v" * REJECTED_BYTES_MAX)
    whole, letter = (DECODER.decode_record(encode_letter(found, "why").value) for found in (fits, large))
    assert isinstance(whole, RejectedEvent)
    assert isinstance(letter, RejectedEvent)
    assert whole.value == fits.value
    assert (letter.value, letter.headers, letter.source_offset) == (None, {}, 42)
    assert f"why (value of {REJECTED_BYTES_MAX} bytes left out" in letter.detail


@pytest.mark.parametrize("key_bytes", [1_100_000, REJECTED_BYTES_MAX, 20_000_000])
def test_a_letter_fits_whatever_the_size_of_the_key(key_bytes: int) -> None:
    key, value = encode_letter(raw_record(b"v", key=b"k" * key_bytes), "why")
    assert batch_bytes(key, value) <= REJECTED_BYTES_MAX
    letter = DECODER.decode_record(value)
    assert isinstance(letter, RejectedEvent)
    assert letter.value == b"v"


def test_letters_that_are_not_acknowledged_go_out_by_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.sinks.runtime.dead_letter_producer._FLUSH_TIMEOUT_S", 0.01)
    producer = DeadLetterProducer(SinkSettings(bootstrap_servers="127.0.0.1:1"), "audit")
    former = producer._open_producer()
    for _ in range(2):
        with pytest.raises(Transient, match="did not acknowledge"):
            producer.send_letters([(raw_record(b"v"), "why")])
    assert producer._open_producer() is not former


def test_letters_of_a_producer_with_a_fatal_error_go_out_by_a_new_one() -> None:
    init_producer_id = 22  # Kafka's API key
    with mock_cluster() as cluster:
        settings = SinkSettings(bootstrap_servers=cluster.bootstrap_servers, topic_prefix="t")
        cluster.create_topic(settings.topics.sink_rejected, [1] * settings.partitions)
        cluster.refuse_request(init_producer_id, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        producer = DeadLetterProducer(settings, "audit")
        former = producer._open_producer()
        with pytest.raises(Transient, match="Cluster authorization failed"):
            producer.send_letters([(raw_record(b"v"), "why")])
        producer.send_letters([(raw_record(b"v"), "why")])
        assert producer._open_producer() is not former
