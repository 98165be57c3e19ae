"""Processes take a session over from each other, through a real broker and a processor."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sessionary.producers import ProducerConflict, Rejected, Session, SessionClient, SessionFenced
from sessionary.schemas.limits import HEARTBEATS_PER_BUDGET
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig, brief_limits
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until


class TakeOverRig:
    """A processor, and clients of it."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path) -> None:
        self._kafka, self._folder = kafka, folder
        self._pipeline = PipelineRig(kafka, None, processes)
        self._pipeline.start_processor()
        self.errors: list[Exception] = []

    def client(
        self,
        agent_id: str,
        service_id: str = "billing",
        heartbeat_interval_s: float = 5.0,
        poll_interval_s: float = 5.0,
    ) -> SessionClient:
        settings = self._pipeline.client_settings(self._folder, agent_id)
        return SessionClient(
            tenant_id=TENANT,
            service_id=service_id,
            agent_id=agent_id,
            settings=settings.model_copy(
                update={"heartbeat_interval_s": heartbeat_interval_s, "poll_interval_s": poll_interval_s}
            ),
            on_error=self.errors.append,
        )

    def audits(self, kind: str) -> list[AuditRecord]:
        records = read_records(self._kafka, self._kafka.topics.audit)
        return [record for record in records if isinstance(record, AuditRecord) and record.kind == kind]

    def rejected_events(self, reason: str) -> Sequence[RejectedEvent]:
        """Return the rejected events, without heartbeats."""
        records = read_records(self._kafka, self._kafka.topics.rejected)
        rejected = [record for record in records if isinstance(record, RejectedEvent) and record.reason == reason]
        return [record for record in rejected if record.event_type != "heartbeat"]


def test_a_session_changes_hands_within_its_service_and_then_to_another_one(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = TakeOverRig(kafka, processes, tmp_path)
    with rig.client("first") as first, rig.client("second") as second, rig.client("third", "shop") as third:
        session = first.session(user_id="u", state={"n": 1}, limits=brief_limits(45_000, grace_ms=600_000))
        session.sync()
        taken = second.attach(session.session_id, take_over=True)
        assert (taken.epoch, taken.state) == (2, {"n": 1})
        session.activity("still here")
        with pytest.raises(SessionFenced):
            session.sync()
        assert taken.update_state({"n": 2}) == 2
        assert taken.sync().holder == second.producer_id
        with pytest.raises(Rejected) as raised:
            third.attach(session.session_id, take_over=True)
        assert raised.value.reason == "owner_alive"
        taken.lifecycle.detach()  # as if the process had died

        given: list[Session] = []

        def try_again() -> bool:
            try:
                given.append(third.attach(session.session_id, take_over=True))
            except Rejected as error:
                assert error.reason == "owner_alive"  # noqa: PT017 - the rejection is one of two right answers
                return False
            return True

        wait_until(try_again, 180, "the owner to have missed two heartbeats")
        (own,) = given
        assert (own.epoch, own.state, own.sync().owner_service) == (3, {"n": 2}, "shop")
    assert [line.reason for line in rig.audits("take_over")] == [
        f"second of billing (process {second.producer_id}) took over from first of billing "
        f"(process {first.producer_id})",
        f"third of shop (process {third.producer_id}) took over from second of billing (process {second.producer_id})",
    ]
    assert [record.event_type for record in rig.rejected_events("stale_epoch")] == ["session_activity"]


def test_a_copied_process_loses_no_event_silently(kafka: KafkaSettings, processes: Processes, tmp_path: Path) -> None:
    rig = TakeOverRig(kafka, processes, tmp_path)
    # A heartbeat of the first process would have the number of a copy's event: a second conflict.
    # A poll would find the copy by the number of its events, perhaps before one is lost.
    interval_s, never = 600.0, 0.0
    limits = brief_limits(budget_ms=round(interval_s) * 1_000 * HEARTBEATS_PER_BUDGET)
    with (
        rig.client("first", heartbeat_interval_s=interval_s, poll_interval_s=never) as first,
        rig.client("copy", heartbeat_interval_s=interval_s, poll_interval_s=never) as copy,
    ):
        copy.core.sequences._producer_id = first.producer_id  # as in a copied virtual machine
        session = first.session(user_id="u", limits=limits)
        session.sync()
        shared = copy.attach(session.session_id)
        shared.activity("lost")
        view = shared.sync()
        assert view.verdict is not None
        assert view.verdict.reason == "producer_conflict"
        shared.activity("work")
        view = shared.sync()
        assert view.verdict is not None
        assert view.verdict.applied
    assert sum(isinstance(error, ProducerConflict) for error in rig.errors) == 1
    assert [record.event_type for record in rig.rejected_events("producer_conflict")] == ["session_activity"]
