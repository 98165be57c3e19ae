"""Differences between what two engines wrote are found, and said."""

from collections.abc import Sequence

import pytest

from benchmarks.measurements.streams_full_job.outputs import EngineOutputs, find_differences
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, CleanupRequest
from sessionary.stream_processors.core.model import OutputCause
from sessionary.stream_processors.core.trail import Subject, audit_record

KEY = SessionKey("acme", "00000000-0000-4000-8000-000000000001")


def make_record(offset: int, to_state: str = "Active") -> AuditRecord:
    record = audit_record(KEY, Subject("Idle", 1), None, OutputCause(0, offset, 0, 1_000, 0), "transition")
    return record._replace(transition="T02", event_type="session_started", to_state=to_state)  # type: ignore[arg-type]


def make_cleanup(reason: str) -> CleanupRequest:
    return CleanupRequest("c1", *KEY, "service", 1, "closed", reason, ("close_connection",), 1_000_000)


def make_outputs(
    records: Sequence[AuditRecord], cleanups: Sequence[CleanupRequest] = (), rejected: int = 0
) -> EngineOutputs:
    audit = {(one.source_partition, one.source_offset, one.source_n): one for one in records}
    return EngineOutputs(audit, {one.cleanup_id: one for one in cleanups}, len(records), rejected)


def test_equal_outputs_do_not_differ() -> None:
    outputs = make_outputs([make_record(1), make_record(2)], [make_cleanup("closed")])
    assert find_differences(outputs, outputs) == []
    assert outputs.transitions == 2


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (make_outputs([make_record(1)]), "audit records: 2 of ours, 1 of theirs"),
        (make_outputs([make_record(1)]), "only ours has transition T02 from Idle to Active by session_started"),
        (make_outputs([make_record(1), make_record(2, "Error")]), "to_state 'Active' and 'Error'"),
        (make_outputs([make_record(1), make_record(2), make_record(2)]), "audit records: 2 of ours, 3 of theirs"),
        (make_outputs([make_record(1), make_record(2)], rejected=1), "rejected records: 0 of ours, 1 of theirs"),
        (make_outputs([make_record(1), make_record(2)], [make_cleanup("x")]), "clean-up requests: 0 of ours, 1"),
    ],
)
def test_a_difference_is_said(theirs: EngineOutputs, said: str) -> None:
    ours = make_outputs([make_record(1), make_record(2)])
    assert said in "\n".join(find_differences(ours, theirs))


def test_a_cleanup_of_other_content_differs() -> None:
    ours, theirs = (make_outputs([make_record(1)], [make_cleanup(reason)]) for reason in ("closed", "other"))
    assert find_differences(ours, theirs) == ["1 clean-up requests differ"]


def test_many_different_records_are_counted_not_listed() -> None:
    ours = make_outputs([make_record(n) for n in range(10)])
    theirs = make_outputs([make_record(n, "Error") for n in range(10)])
    found = find_differences(ours, theirs)
    assert len(found) == 4
    assert found[-1] == "7 more audit records differ"
