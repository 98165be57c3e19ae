"""The auditor's check of sessions that changed hands can fail."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.auditor.checks import replay_evidence, run_checks
from tests.auditor.decoding import Row
from tests.auditor.evidence import Evidence
from tests.core.oracle_rig import OracleRig
from tests.core.test_auditor import evidence_of
from tests.support.event_factory import EventFactory, snapshot

SOURCE, TARGET, KEY = "orders", "backup", "order-7"
CALL = {"tool_call_id": "c", "tool_name": "order", "idem_key": KEY, "try_number": 1}
SILENT_MS = 20_000


class TakeOverRig:
    """Agents of two services: the second takes a session over within a call of the first."""

    def __init__(self) -> None:
        self.rig = OracleRig()
        self.source = EventFactory(service=SOURCE, producer="p")
        self.target = EventFactory(service=TARGET, producer="q")
        self.rig.start(self.source)
        self.send(self.source, "state_updated")
        self.send(self.source, "snapshot_created", snapshot=snapshot("second"))
        self.send(self.source, "tool_call_started", **CALL, side_effect=True, queryable=True)

    def send(self, agent: EventFactory, event_type: str, **fields: Any) -> str:
        """Send an event of an agent that knows the newest epoch and snapshot."""
        row = self.rig.oracle.rows[self.source.key.encoded()]
        agent.epoch, agent.head = row["epoch"], row["head"]
        return self.send_stale(agent, event_type, **fields)

    def send_stale(self, agent: EventFactory, event_type: str, **fields: Any) -> str:
        return self.rig.append(agent.key.encoded(), agent.event_bytes(event_type, **fields))

    def take_over(self) -> None:
        """Let the target take the session over, resolve the call and change the content."""
        for _ in range(SILENT_MS // 1_000):
            self.rig.advance(1_000)
        assert self.send(self.target, "session_taken_over") == "applied"
        resolved = {name: CALL[name] for name in ("tool_call_id", "tool_name", "idem_key")}
        outcome = {"outcome": "succeeded", "result_json": "{}", "resolved_by": "query"}
        assert self.send(self.target, "tool_call_resolved", **resolved, **outcome) == "applied"
        self.update(2)
        assert self.send(self.target, "snapshot_created", snapshot=snapshot("third")) == "applied"

    def update(self, base: int) -> None:
        fields = {"base_version": base, "new_version": base + 1}
        assert self.send(self.target, "state_updated", **fields) == "applied"

    def wake(self) -> None:
        """Let the source go on as if nothing had happened."""
        ended = {**CALL, "result_json": "{}", "artifact_id": None}
        for event_type, fields in (
            ("tool_call_succeeded", ended),
            ("state_updated", {"base_version": 2, "new_version": 3}),
            ("snapshot_created", {"snapshot": snapshot("forked", parent="second")}),
            ("session_activity", {}),
            ("heartbeat", {}),
        ):
            assert self.send_stale(self.source, event_type, **fields) == "rejected stale_epoch"

    def evidence(self) -> Evidence:
        session = {"tenant_id": self.source.key.tenant_id, "session_id": self.source.key.session_id}
        claim = {**session, "source": SOURCE, "target": TARGET, "key": KEY}
        return evidence_of(self.rig)._replace(claims=[claim])


@pytest.fixture(scope="module")
def fenced() -> Evidence:
    rig = TakeOverRig()
    rig.take_over()
    rig.wake()
    rig.update(3)
    return rig.evidence()


def complaints(evidence: Evidence) -> list[str]:
    """Return what the check of take-overs says."""
    return [one.text for one in run_checks(replay_evidence(evidence)) if one.kind == "take-over"]


def without_rejection(evidence: Evidence, event_type: str) -> Evidence:
    """Return the evidence as if an event had been accepted."""
    kept = [(entry, line) for entry, line in evidence.outputs["rejected"] if line["event_type"] != event_type]
    assert len(kept) == len(evidence.outputs["rejected"]) - 1
    return evidence._replace(outputs={**evidence.outputs, "rejected": kept})


def with_audits(evidence: Evidence, change: Callable[[Row], Row]) -> Evidence:
    audits = [(entry, change(line)) for entry, line in evidence.outputs["audit"]]
    return evidence._replace(outputs={**evidence.outputs, "audit": audits})


def test_a_session_whose_former_agent_is_fenced_off_passes(fenced: Evidence) -> None:
    assert run_checks(replay_evidence(fenced)) == []


@pytest.mark.parametrize("event_type", ["state_updated", "snapshot_created", "tool_call_succeeded", "session_activity"])
def test_a_stale_event_that_was_accepted_is_named(fenced: Evidence, event_type: str) -> None:
    first, *others = complaints(without_rejection(fenced, event_type))
    assert first.startswith(f"{event_type} of {SOURCE} at 0/")
    assert first.endswith("is of an epoch that was over; it was accepted")
    further = {
        "state_updated": "no chain: [(1, 2), (2, 3), (2, 3), (3, 4)]",
        "snapshot_created": "its snapshots are no chain",
        "tool_call_succeeded": f"the call under {KEY} succeeded 2 times",
    }
    assert len(others) == (event_type in further)
    assert all(further[event_type] in text for text in others)


def test_two_owners_in_one_epoch_are_named(fenced: Evidence) -> None:
    def share(line: Row) -> Row:
        return {**line, "owner_service": "third"} if line["kind"] == "rejection" and line["epoch"] == 2 else line

    assert any("has the owners backup, third" in text for text in complaints(with_audits(fenced, share)))


def test_an_epoch_that_falls_is_named(fenced: Evidence) -> None:
    last = max(line["audit_seq"] for _, line in fenced.outputs["audit"])

    def fall(line: Row) -> Row:
        return {**line, "epoch": 1, "owner_service": SOURCE} if line["audit_seq"] == last else line

    assert any("fall: [1, " in text for text in complaints(with_audits(fenced, fall)))


def test_a_session_that_no_service_took_over_is_no_proof() -> None:
    idle = TakeOverRig()
    idle.take_over()
    assert complaints(idle.evidence()) == [], "an agent that is told in time sends nothing more"
    never = TakeOverRig().evidence()
    found = complaints(never)
    assert any(f"its owners are ['{SOURCE}'], not {SOURCE}, then {TARGET}" in text for text in found)
    assert any(f"the call under {KEY} succeeded 0 times" in text for text in found)
    assert any("not changed by both services" in text for text in found)


def test_an_event_of_a_detached_run_may_be_of_an_epoch_that_is_over() -> None:
    rig = TakeOverRig()
    run = {"run_id": "00000000-0000-4000-8000-000000000001"}
    begun = rig.source.event_bytes("run_started", run, mode="detached")
    assert rig.rig.append(rig.source.key.encoded(), begun) == "applied"
    rig.take_over()
    rig.wake()
    going_on = rig.source.event_bytes("run_running", run, progress=None)
    assert rig.rig.append(rig.source.key.encoded(), going_on) == "applied"
    assert complaints(rig.evidence()) == []


def test_an_event_that_is_delivered_again_after_the_take_over_is_not_accepted_again() -> None:
    rig = TakeOverRig()
    early = rig.source.event_bytes("session_activity")
    assert rig.rig.append(rig.source.key.encoded(), early) == "applied"
    rig.take_over()
    assert rig.rig.append(rig.source.key.encoded(), early) == "duplicate"
    rig.wake()
    assert complaints(rig.evidence()) == []
