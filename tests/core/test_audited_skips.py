"""Records that an operator skipped, and gaps of the log that one accepted, before the auditor."""

from typing import Any

from tests.auditor.checks import replay_evidence, run_checks
from tests.auditor.decoding import Decision, LogEntry, Row
from tests.auditor.partition_oracle import PartitionOracle
from tests.core.oracle_rig import START_MS, OracleRig
from tests.core.test_auditor import complaints, evidence_of, with_output, without
from tests.support.event_factory import TICK, EventFactory


def skipped_rig() -> tuple[OracleRig, EventFactory]:
    """Return a rig with a session in whose log two records were skipped."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    key = agent.key.encoded()
    rig.skip("records_skipped", (key, b"poison"), (key, agent.event_bytes("session_started")), clock_ms=rig.at + 900)
    assert rig.send(agent, "session_activity") == "applied", "a number is missing, and the session goes on"
    rig.advance(2_000)
    return rig, agent


def test_skipped_records_are_no_difference() -> None:
    rig, _ = skipped_rig()
    evidence = evidence_of(rig)
    inputs = replay_evidence(evidence)
    assert run_checks(inputs) == []
    (line,) = (line for _, line in evidence.outputs["audit"] if line["event_type"] == "records_skipped")
    assert (line["kind"], line["gap_first"], line["gap_last"]) == ("decision", 4, 5)
    assert [inputs.oracle.partitions[0].outcomes[offset] for offset in (4, 5)] == ["rejected skipped"] * 2


def test_a_skip_that_is_reported_wrong() -> None:
    right = evidence_of(skipped_rig()[0])

    def reported(**fields: Any) -> set[str]:
        def change(records: list[tuple[LogEntry, Row]]) -> list[tuple[LogEntry, Row]]:
            return [
                (entry, {**line, **fields} if line["event_type"] == "records_skipped" else line)
                for entry, line in records
            ]

        return complaints(with_output(right, "audit", change))

    assert reported() == set()
    assert "judgement" in reported(gap_last=4), "a record less"
    assert "judgement" in reported(gap_last=6), "a record that was folded"
    assert "judgement" in reported(gap_first=3)
    assert "judgement" in reported(source_offset=5)
    assert "judgement" in reported(event_type="log_gap_accepted"), "the gap has records"
    assert "judgement" in reported(kind="gap")
    assert "judgement" in reported(tenant_id="acme")
    skipped = next(n for n, (_, batch) in enumerate(right.outputs["batches"]) if batch["first_offset"] == 4)
    assert complaints(with_output(right, "batches", lambda records: without(records, skipped)))
    letters = [n for n, (_, line) in enumerate(right.outputs["rejected"]) if line["reason"] == "skipped"]
    assert len(letters) == 2
    assert complaints(with_output(right, "rejected", lambda records: without(records, letters[0])))


def test_a_position_record_that_has_other_decisions_than_the_audit_trail() -> None:
    right = evidence_of(skipped_rig()[0])
    assert complaints(right) == set()
    (decision,) = right.decided[0]
    for wrong in ([], [decision, decision], [{**decision, "principal": "bob"}], [{**decision, "last_offset": 6}]):
        assert complaints(right._replace(decided={0: wrong})) == {"judgement"}


def test_of_more_than_eight_decisions_the_position_record_has_the_last() -> None:
    rig = skipped_rig()[0]
    for _ in range(9):
        rig.skip("log_gap_accepted", missing=1)
    evidence = evidence_of(rig)
    assert complaints(evidence) == set()
    assert [decision["event_type"] for decision in evidence.decided[0]] == ["log_gap_accepted"] * 8


def test_an_accepted_gap_of_the_log_is_no_difference() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.skip("log_gap_accepted", missing=3)
    assert rig.fold.position.next_offset == 7
    assert rig.send(agent, "session_activity") == "applied"
    evidence = evidence_of(rig)
    assert complaints(evidence) == set()
    (at,) = (n for n, (_, line) in enumerate(evidence.outputs["audit"]) if line["event_type"] == "log_gap_accepted")
    assert "judgement" in complaints(with_output(evidence, "audit", lambda records: without(records, at)))


def test_records_that_took_the_offsets_of_folded_ones_are_left_out() -> None:
    oracle, agent = PartitionOracle(0, 1), EventFactory()
    key = agent.key.encoded()
    created, started = agent.event_bytes("session_created"), agent.event_bytes("session_phase_changed")
    oracle.decisions.append(Decision(0, 2, "log_truncation_accepted", clock_ms=START_MS, first=1, last=1))
    again = [
        (0, key, created, "applied"),
        (1, key, started, "applied"),
        (1, key, b"poison", "rejected skipped"),  # it came after the log was cut
        (2, None, TICK, "tick"),
    ]
    for offset, at, value, outcome in again:
        assert oracle.apply_record(LogEntry(0, offset, START_MS, at, value)) == outcome
    assert oracle.faults == []
    assert [line["event_type"] for line in oracle.audits if line["kind"] == "decision"] == ["log_truncation_accepted"]
    assert oracle.apply_record(LogEntry(0, 2, START_MS, key, b"poison")) == "unfolded"
    assert oracle.faults == ["offset 2 of partition 0 came again, and no decision says so"]
