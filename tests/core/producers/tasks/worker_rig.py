"""A task worker without Kafka: its consumer takes one step of a test in each turn."""

from collections.abc import Callable, Iterable, Mapping

from sessionary.producers.control.request_consumer import TASKS, KafkaRequestConsumer
from sessionary.producers.settings import ProducerSettings
from sessionary.producers.tasks import TaskWorker
from sessionary.producers.testing import memory_client
from tests.support.fake_kafka import FakeConsumer

SETTINGS = ProducerSettings()
TOPIC = SETTINGS.topics.tasks


class WorkerRig:
    """The worker of a client in memory; tests hand in the log's ends and the clock."""

    def __init__(self) -> None:
        self.kafka = FakeConsumer(TOPIC)
        self.later: list[FakeConsumer] = []  # each replaces the one before it
        self.now_s = 100.0
        self.log_ends: dict[int, int] = {}
        self.errors: list[Exception] = []
        self.requests = KafkaRequestConsumer(
            SETTINGS,
            "acme",
            "billing",
            self.errors.append,
            TASKS,
            new_consumer=self._new_consumer,
            ask_ends=self._ask_ends,
            ask_group=lambda: False,
            clock_s=lambda: self.now_s,
        )
        self.client, _ = memory_client("acme")
        self.client.core.ports = self.client.core.ports._replace(task_requests=self.requests)
        self.worker = TaskWorker(self.client, {})
        self._opened: list[FakeConsumer] = []

    def _new_consumer(self) -> FakeConsumer:
        if self._opened:
            self.kafka = self.later.pop(0)
            self.kafka.when_out_of_steps = self._opened[-1].when_out_of_steps
        self._opened.append(self.kafka)
        return self.kafka

    def _ask_ends(self, _partitions: Iterable[int]) -> Mapping[int, int]:
        return self.log_ends

    def pass_time(self) -> None:
        """Let the time pass after which the log's ends are asked again."""
        self.now_s += 5.0

    def run_steps(self, *steps: Callable[[], None]) -> None:
        """Run the worker's consumer until each step was taken, one per turn; then it ends."""
        self.kafka.steps = list(steps)
        self.kafka.when_out_of_steps = lambda: self.requests.close(0)
        self.worker.start()
        thread = self.requests._thread
        assert thread is not None
        thread.join(30)
        assert not thread.is_alive()
