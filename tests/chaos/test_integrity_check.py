"""The auditor's findings in ClickHouse and the product's own are compared, place by place."""

import pytest

from tests.auditor.checks import AuditInput, replay_evidence
from tests.auditor.evidence import Evidence
from tests.chaos.integrity_check import Fault, find_disagreements, find_uncompared
from tests.chaos.losses import find_unseen
from tests.core.test_auditor import evidence_of, recorded_rig


def fault(name: str, partition: int | None = 0) -> Fault:
    return {"fault": name, "partition": partition, "rows": 1}


@pytest.fixture
def evidence() -> Evidence:
    return evidence_of(recorded_rig()[0])


def lose_first_row(evidence: Evidence, table: str) -> AuditInput:
    return replay_evidence(evidence._replace(rows={**evidence.rows, table: evidence.rows[table][1:]}))


def test_auditor_and_v_integrity_agree_if_both_name_the_place_or_none(evidence: Evidence) -> None:
    assert find_disagreements(replay_evidence(evidence), []) == []
    assert find_disagreements(lose_first_row(evidence, "history"), [fault("history_rows_missing")]) == []
    assert find_disagreements(lose_first_row(evidence, "batches"), [fault("batches_end_missing")]) == []
    audit = [fault("audit_rows_missing"), fault("audit_missing", None)]
    assert find_disagreements(lose_first_row(evidence, "audit"), audit) == []


@pytest.mark.parametrize("reported", [[], [fault("audit_rows_missing")], [fault("history_rows_missing", 1)]])
def test_a_loss_that_v_integrity_does_not_name_is_a_difference(evidence: Evidence, reported: list[Fault]) -> None:
    first = find_disagreements(lose_first_row(evidence, "history"), reported)[0]
    assert first == ("integrity", "the auditor finds wrong rows of partition 0 in history, v_integrity none")


@pytest.mark.parametrize(
    "false", [fault("history_rows_missing", 1), fault("batch_missing"), fault("chain_broken", None)]
)
def test_a_false_alarm_is_a_difference_also_beside_a_true_one(evidence: Evidence, false: Fault) -> None:
    for inputs, true in (
        (replay_evidence(evidence), []),
        (lose_first_row(evidence, "history"), [fault("history_rows_missing")]),
    ):
        (difference,) = find_disagreements(inputs, [*true, false])
        assert difference.text.startswith("v_integrity has 1 faults where the auditor has none")
        assert false["fault"] in difference.text


def test_what_kafka_itself_lacks_is_no_false_alarm(evidence: Evidence) -> None:
    outputs = {**evidence.outputs, "audit": evidence.outputs["audit"][1:]}
    rows = {**evidence.rows, "audit": evidence.rows["audit"][1:]}
    inputs = replay_evidence(evidence._replace(outputs=outputs, rows=rows))
    assert find_disagreements(inputs, [fault("audit_rows_missing"), fault("audit_missing", None)]) == []


def test_a_loss_must_be_seen_by_both(evidence: Evidence) -> None:
    lossy = lose_first_row(evidence, "history").evidence
    lost = {("history", 0)}
    assert find_unseen("a row", lost, lossy, [fault("history_rows_missing")]) == []
    (blind,) = find_unseen("a row", lost, lossy, [fault("audit_rows_missing")])
    assert blind.text == "a row of partition 0 in history was lost, and v_integrity does not see it"
    (blind,) = find_unseen("a row", lost, evidence, [fault("history_end_missing")])
    assert blind.text == "a row of partition 0 in history was lost, and the auditor does not see it"


def test_what_was_not_compared_is_a_difference_unless_it_is_old() -> None:
    old = "p.cleanup is compared from 2026-11-28T10:00:00 on: older records may be deleted"
    others = [
        "p.tasks is not compared: Kafka sent nothing for 30 s",
        "partition 0: 3 transactions, of the numbers 1 to 3, do not count their records of cleanup, tasks, migrations, "
        "quotas: these are not compared",
    ]
    assert [found.text for found in find_uncompared([old, *others])] == others
