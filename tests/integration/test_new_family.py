"""Two workers with another family of rows: they move with their partitions."""

import signal

from sessionary.schemas.records import CleanupRequest, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    BackgroundLoad,
    Sender,
    agent_of_partition,
    check_everything,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import LASTING, SHORT
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
    sender = Sender(kafka)
    one = start_processor(processes, kafka, "w1", WORKER)
    with BackgroundLoad(kafka, sessions=60, rate=400, seed=23, limits=SHORT, messages=0.04) as load:
        wait_for_writers(kafka, {"w1"}, 20)
        two = start_processor(processes, kafka, "w2", WORKER)
        wait_for_writers(kafka, {"w1", "w2"}, 20)
        one.signal(signal.SIGKILL)
        wait_for_writers(kafka, {"w2"}, 20)
        # The load may have closed all of its tallies by now.
        later = [agent_of_partition(partition, kafka.partitions) for partition in range(kafka.partitions)]
        sender.send(*(event for agent in later for event in (*agent.start(LASTING), agent.message())))
        sender.flush()
        ids = {agent.key.session_id for agent in later}
        wait_until(lambda: ids <= {each.session_id for each in _tally_requests(kafka)}, 10, "their tallies are closed")
        sender.send(*(agent.message() for agent in later))
        sender.flush()
        wait_until(lambda: len(_tally_rejections(kafka)) >= len(ids), 10, "their messages are rejected")
    wait_judged(kafka, load.sent + len(sender.places))
    two.signal(signal.SIGTERM)
    assert two.wait(180)
    assert two.exit_code == 0
    check_everything(kafka, tally_judge(SILENCE_MS))
