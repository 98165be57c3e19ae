"""The auditor's answer and the product's own are compared, each way."""

from tests.auditor.checks import replay_evidence
from tests.chaos.integrity_check import find_disagreements
from tests.core.test_auditor import evidence_of, recorded_rig

_FAULT = {"fault": "history_rows_missing", "partition": 0, "rows": 1}


def test_auditor_and_v_integrity_must_agree() -> None:
    evidence = evidence_of(recorded_rig()[0])
    sound = replay_evidence(evidence)
    lossy = replay_evidence(evidence._replace(rows={**evidence.rows, "history": evidence.rows["history"][1:]}))
    assert find_disagreements(sound, []) == []
    assert find_disagreements(lossy, [_FAULT]) == []
    (unseen,) = find_disagreements(lossy, [])
    assert unseen == ("integrity", "the auditor found 1 wrong rows, v_integrity none")
    (false_alarm,) = find_disagreements(sound, [_FAULT])
    assert "history_rows_missing" in false_alarm.text
