"""Compliance tags and retention of audit records; the records of accesses."""

from datetime import UTC, datetime, timedelta

import pytest

from sessionary.schemas.types import DataClass
from sessionary.stream_processors.core.trail import Access, with_accesses
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

LEAP_DAY = datetime(2028, 2, 29, 12, tzinfo=UTC)
MONTH, YEAR = timedelta(days=30), timedelta(days=365)
CASES: list[tuple[tuple[DataClass, ...], list[str], str, datetime, bool]] = [
    ((), [], "default", LEAP_DAY + YEAR, False),
    (("none", "UNKNOWN"), [], "default", LEAP_DAY + YEAR, False),
    (("personal",), ["gdpr_retention"], "gdpr_retention", LEAP_DAY + MONTH, True),
    (("financial",), ["sox_audit"], "sox_audit", datetime(2035, 3, 1, 12, tzinfo=UTC), False),
    (("medical",), ["hipaa_privacy"], "hipaa_privacy", datetime(2034, 3, 1, 12, tzinfo=UTC), False),
    (
        ("medical", "personal"),
        ["gdpr_retention", "hipaa_privacy"],
        "hipaa_privacy",
        datetime(2034, 3, 1, 12, tzinfo=UTC),
        True,
    ),
    (
        ("medical", "financial", "personal"),
        ["gdpr_retention", "hipaa_privacy", "sox_audit"],
        "sox_audit",
        datetime(2035, 3, 1, 12, tzinfo=UTC),
        True,
    ),
]


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def test_an_access_is_a_security_record_of_its_tenant_outside_of_the_numbers_of_sessions() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    access = Access("acme", "ann", "unknown_session", "requests: 7")
    judged = rig.outcomes[-1]
    outcome = with_accesses(judged, 0, [access])
    *others, (stream, key, line) = outcome.emitted
    assert others == list(judged.emitted)
    assert (stream, key, line.kind, line.tenant_id, line.session_id, line.audit_seq) == (
        *("audit", None, "access", "acme", "", 0),
    )
    assert (line.actor, line.reason_code, line.reason, line.security) == ("ann", "unknown_session", "requests: 7", True)
    assert (line.source_offset, line.batch_number) == (len(rig.log) - 1, judged.position.batch_number)
    assert line.appended_at == rig.at * 1_000
    assert outcome.counts == judged.counts._replace(audited=judged.counts.audited + 1)
    assert (outcome.rows, outcome.position) == (judged.rows, judged.position)


@pytest.mark.parametrize(("classes", "tags", "longest", "until", "personal"), CASES)
def test_the_longest_period_keeps_the_record_and_the_shortest_its_personal_columns(
    classes: tuple[DataClass, ...], tags: list[str], longest: str, until: datetime, *, personal: bool
) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.at = micros(LEAP_DAY) // 1000
    assert rig.send(agent, "session_created", {"data_classes": classes}) == "applied"
    (line,) = rig.last_audits()
    assert sorted(line.compliance_tags) == tags
    assert line.retention_class == longest
    assert line.retain_until == micros(until)
    assert line.personal_until == (micros(LEAP_DAY + MONTH) if personal else None)


def test_classes_declared_later_tag_later_records() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_activity", {"data_classes": ("medical",)}) == "applied"
    assert rig.send(agent, "session_paused", {"data_classes": ()}) == "applied"
    (line,) = rig.last_audits()
    assert sorted(line.compliance_tags) == ["gdpr_retention", "hipaa_privacy"]


def test_classes_declared_by_an_event_tag_its_own_record() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_paused", {"data_classes": ("financial",)}) == "applied"
    (line,) = rig.last_audits()
    assert sorted(line.compliance_tags) == ["gdpr_retention", "sox_audit"]
    assert line.retention_class == "sox_audit"
    assert rig.row_of(agent).data_classes == ("financial", "personal")
