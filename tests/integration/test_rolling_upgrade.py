"""From workers that know one version of the rules to workers that know two, while clients work.

The second version is one that only tests have (`tests.support.second_rules`).
"""

import json
import signal
from collections.abc import Callable
from typing import NamedTuple

import pytest

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_ports
from sessionary.infra.local.process import Child
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import Invalid, SessionaryError
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from tests.core.conftest import second_rules  # noqa: F401 - the fixture
from tests.integration.processor_load import (
    BackgroundLoad,
    changelog_of,
    check_everything,
    last_writers,
    start_processor,
    wait_caught_up,
    wait_for_writers,
)
from tests.support import Processes, read_batches, wait_until
from tests.support.second_rules import SECOND_RULES

pytestmark = pytest.mark.usefixtures("second_rules")

WAIT_S = 180.0  # a busy machine starts processes slowly
FIRST, SECOND = NEWEST_RULES.version, SECOND_RULES.version
TOKENS = {"op": {"principal": "on-call", "roles": ["operator"]}}
UPGRADED = "tests.support.second_rules.worker"


class Worker(NamedTuple):
    """A worker process; `client` asks its API as an operator."""

    name: str
    child: Child
    client: ControlApiClient

    def end(self) -> None:
        """End it gracefully."""
        self.child.signal(signal.SIGTERM)
        assert self.child.wait(WAIT_S)


class Fleet:
    """Starts workers for one pipeline, at two addresses."""

    def __init__(self, kafka: KafkaSettings, processes: Processes) -> None:
        self._kafka, self._processes, self._ports = kafka, processes, free_ports(2)

    def start(self, place: int, name: str, module: str = "sessionary.stream_processors") -> Worker:
        """Start a worker at place 0 or 1."""
        port = self._ports[place]
        child = start_processor(
            self._processes, self._kafka, name, module, api_port=str(port), api_tokens=json.dumps(TOKENS)
        )
        settings = OperatorSettings.model_validate({"control_url": f"http://127.0.0.1:{port}", "operator_token": "op"})
        return Worker(name, child, ControlApiClient(settings))


@pytest.fixture
def fleet(kafka: KafkaSettings, processes: Processes) -> Fleet:
    return Fleet(kafka, processes)


def rules_in_force(kafka: KafkaSettings) -> set[int]:
    """Return the rules of the partitions' last batches."""
    return {*{batch.partition: batch.rules for batch in read_batches(kafka)}.values()}


def are_all_open(worker: Worker) -> bool:
    try:
        return {found["state"] for found in worker.client.list_partitions()} == {"open"}
    except SessionaryError:
        return False


def activate(worker: Worker) -> Callable[[], bool]:
    def is_activated() -> bool:
        try:
            listing = worker.client.activate_rules(SECOND)
        except SessionaryError:  # a partition is opening
            return False
        return {found["rules"] for found in listing["partitions"]} == {SECOND}

    return is_activated


def test_workers_are_upgraded_one_by_one_and_newer_rules_begin_once_all_know_them(
    kafka: KafkaSettings, fleet: Fleet
) -> None:
    with BackgroundLoad(kafka, 20, 100, 5):
        one, two = fleet.start(0, "old-1"), fleet.start(1, "old-2")
        wait_for_writers(kafka, {"old-1", "old-2"}, WAIT_S)
        one.end()
        one = fleet.start(0, "new-1", UPGRADED)
        wait_for_writers(kafka, {"new-1", "old-2"}, WAIT_S)
        wait_until(lambda: are_all_open(one), WAIT_S, "all partitions open", pause_s=0.5)
        # While a worker lives that does not know them, the rules stay.
        with pytest.raises(Invalid, match=rf"not every worker is known to know rules {SECOND}: old-2 "):
            one.client.activate_rules(SECOND)
        assert rules_in_force(kafka) == {FIRST}
        two.end()
        two = fleet.start(1, "new-2", UPGRADED)
        wait_for_writers(kafka, {"new-1", "new-2"}, WAIT_S)
        wait_until(activate(two), WAIT_S, "the second rules in force", pause_s=0.5)
        wait_until(lambda: rules_in_force(kafka) == {SECOND}, WAIT_S, "batches by the second rules", pause_s=0.5)
        # Who does not know them halts what it is given, and judges nothing.
        two.end()
        late = fleet.start(1, "late")
        wait_until(lambda: "unknown_rules" in late.child.log.read_text("utf-8"), WAIT_S, "the halt", pause_s=0.5)
        late.end()
        two = fleet.start(1, "new-2", UPGRADED)
        wait_for_writers(kafka, {"new-1", "new-2"}, WAIT_S)
    wait_caught_up(kafka, WAIT_S)
    one.end()
    two.end()
    assert "late" not in {batch.instance for batch in read_batches(kafka)}
    decisions = [audit for audit in check_everything(kafka) if audit.kind == "decision"]
    assert sorted(audit.source_partition for audit in decisions) == list(range(kafka.partitions))
    assert {(audit.event_type, audit.actor) for audit in decisions} == {("rules_announced", "on-call")}


@pytest.mark.parametrize(("second", "begins"), [(UPGRADED, SECOND), ("sessionary.stream_processors", FIRST)])
def test_a_new_pipeline_begins_with_the_newest_rules_that_every_worker_knows(
    kafka: KafkaSettings, fleet: Fleet, second: str, begins: int
) -> None:
    # The worker that knows less is there first: else the other one would begin alone.
    two = fleet.start(1, "two", second)
    wait_until(lambda: are_all_open(two), WAIT_S, "all partitions open", pause_s=0.5)
    one = fleet.start(0, "one", UPGRADED)
    wait_until(lambda: are_all_open(one), WAIT_S, "all partitions open", pause_s=0.5)
    with BackgroundLoad(kafka, 20, 100, 6):
        wait_until(lambda: set(last_writers(kafka).values()) == {"one", "two"}, WAIT_S, "both at work", pause_s=0.5)
        wait_until(lambda: len(last_writers(kafka)) == kafka.partitions, WAIT_S, "all partitions", pause_s=0.5)
    wait_caught_up(kafka, WAIT_S)
    one.end()
    two.end()
    assert {batch.rules for batch in read_batches(kafka)} == {begins}
    assert {position.rules.version for position in changelog_of(kafka)[1].values()} == {begins}
    said = f"begins with rules {begins}, the newest that every worker of its group knows"
    assert said in two.child.log.read_text("utf-8")
    expected = SECOND_RULES if begins == SECOND else NEWEST_RULES
    check_everything(kafka, rules=expected)
