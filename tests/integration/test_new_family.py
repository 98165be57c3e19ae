"""Two workers with another family of rows: they move with their partitions."""

import signal

from sessionary.schemas.records import CleanupRequest, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import SHORT
from tests.support import Processes, read_records, wait_until
from tests.support.tally_family import CLOSED, TALLY_SERVICE, tally_judge
from tests.support.tally_worker import SILENCE_MS

WORKER = "tests.support.tally_worker"


def _tally_requests(kafka: KafkaSettings) -> list[CleanupRequest]:
    records = read_records(kafka, kafka.topics.cleanup)
    return [record for record in records if isinstance(record, CleanupRequest) and record.service_id == TALLY_SERVICE]


def _tally_rejections(kafka: KafkaSettings) -> list[RejectedEvent]:
    records = read_records(kafka, kafka.topics.rejected)
    return [record for record in records if isinstance(record, RejectedEvent) and record.detail == CLOSED]


def test_rows_of_another_family_move_between_workers(kafka: KafkaSettings, processes: Processes) -> None:
    one = start_processor(processes, kafka, "w1", WORKER)
    with BackgroundLoad(kafka, sessions=60, rate=400, seed=23, limits=SHORT, messages=0.04) as load:
        wait_for_writers(kafka, {"w1"}, 20)
        two = start_processor(processes, kafka, "w2", WORKER)
        wait_for_writers(kafka, {"w1", "w2"}, 20)
        one.signal(signal.SIGKILL)
        wait_for_writers(kafka, {"w2"}, 20)
        handed_over = len(_tally_requests(kafka))
        wait_until(lambda: len(_tally_requests(kafka)) > handed_over, 10, "a tally is closed after the kill")
        wait_until(lambda: _tally_rejections(kafka), 10, "a message is rejected")
    wait_judged(kafka, load.sent)
    two.signal(signal.SIGTERM)
    assert two.wait(180)
    assert two.exit_code == 0
    check_everything(kafka, tally_judge(SILENCE_MS))
