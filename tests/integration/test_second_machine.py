"""Two workers with a second machine: its rows move, and each message counts once."""

import signal

from sessionary.schemas.records import CleanupRequest, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import LogRecord
from tests.integration.processor_load import (
    BackgroundLoad,
    changelog_of,
    check_everything,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import SHORT
from tests.simulation.tally_account import messages_by_key
from tests.support import Processes, read_records, read_topic, wait_until
from tests.support.tally_machine import CLOSED, KEY_SUFFIX, TALLY_SERVICE, Tally
from tests.support.tally_worker import two_machines

WORKER = "tests.support.tally_worker"


def _tally_requests(kafka: KafkaSettings) -> list[CleanupRequest]:
    records = read_records(kafka, kafka.topics.cleanup)
    return [record for record in records if isinstance(record, CleanupRequest) and record.service_id == TALLY_SERVICE]


def _tally_refusals(kafka: KafkaSettings) -> list[RejectedEvent]:
    records = read_records(kafka, kafka.topics.rejected)
    return [record for record in records if isinstance(record, RejectedEvent) and record.detail == CLOSED]


def test_rows_of_a_second_machine_move_between_workers(kafka: KafkaSettings, processes: Processes) -> None:
    one = start_processor(processes, kafka, "w1", WORKER)
    with BackgroundLoad(kafka, sessions=60, rate=400, seed=23, limits=SHORT, messages=0.04) as load:
        wait_for_writers(kafka, {"w1"}, 20)
        two = start_processor(processes, kafka, "w2", WORKER)
        wait_for_writers(kafka, {"w1", "w2"}, 20)
        one.signal(signal.SIGKILL)
        wait_for_writers(kafka, {"w2"}, 20)
        handed_over = len(_tally_requests(kafka))
        wait_until(lambda: len(_tally_requests(kafka)) > handed_over, 10, "a tally is closed after the kill")
        wait_until(lambda: _tally_refusals(kafka), 10, "a message is refused")
    wait_judged(kafka, load.sent)
    two.signal(signal.SIGTERM)
    assert two.wait(180)
    assert two.exit_code == 0
    check_everything(kafka, two_machines())
    _check_messages(kafka)


def _check_messages(kafka: KafkaSettings) -> None:
    """Assert that each message was refused or counted once, from the topics alone."""
    rows, _ = changelog_of(kafka, two_machines())
    in_open_tallies = sum(row.messages for row in rows.values() if isinstance(row, Tally))
    closed = sum(int(request.cleanup_id.rpartition(":")[2]) for request in _tally_requests(kafka))
    refused = len(_tally_refusals(kafka))
    log = [
        LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value)
        for stored in read_topic(kafka, kafka.topics.events)
    ]
    sent = sum(map(len, messages_by_key(log).values()))
    assert sent > 100
    assert closed + in_open_tallies + refused == sent
    changelog = read_topic(kafka, kafka.topics.changelog)
    assert any(stored.value is None for stored in changelog if (stored.key or b"").endswith(KEY_SUFFIX))  # vanished
