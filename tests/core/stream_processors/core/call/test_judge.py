"""What events come to for the reserved tool calls that they name."""

import pytest

from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.types import ErrorInfo
from tests.core.stream_processors.core.child_rig import FATAL, LIMIT_MS, RETRYABLE, UNCLEAR, ChildRig


@pytest.mark.parametrize("run_id", ["r1", None, ""])
def test_a_call_is_granted_and_succeeds(run_id: str | None) -> None:
    rig = ChildRig()
    assert rig.call("started", run_id=run_id, side_effect=False, queryable=True) == "applied"
    row = rig.running(run_id)
    assert (row.run_id, row.step_id, row.tool_name, row.idem_key) == (run_id or None, "s", "pay", "k")
    assert (row.try_number, row.side_effect, row.queryable) == (1, False, True)
    assert (row.started_at, row.due_at, row.limit_ms) == (rig.at, rig.at + LIMIT_MS, LIMIT_MS)
    assert row.reservation != ""
    assert rig.call("started", run_id=run_id) == "rejected call_in_progress"
    rig.at += 10
    assert rig.call("succeeded", run_id=run_id, result_json="1", artifact_id="a") == "applied"
    done = rig.ended(run_id)
    assert (done.state, done.result_json, done.artifact_id, done.resolved_by) == ("succeeded", "1", "a", None)
    assert (done.started_at, done.entered_at) == (rig.at - 10, rig.at)
    assert rig.call("started", 2, run_id) == "rejected call_succeeded"
    for event in ("succeeded", "failed", "resolved"):
        assert rig.call(event, run_id=run_id) == "rejected illegal_transition"
    assert rig.ended(run_id) == done


def test_a_call_has_the_limit_of_its_session_unless_it_asks_for_another() -> None:
    rig = ChildRig()
    assert rig.call("started", limit_ms=None) == "applied"
    assert rig.running().due_at == rig.at + 20_000
    rejected = [rig.call("started", idem_key="x", limit_ms=limit) for limit in (0, LIMIT_MAX + 1)]
    assert rejected == ["rejected invalid_value"] * 2
    assert rig.call("started", idem_key="x", limit_ms=LIMIT_MAX) == "applied"


@pytest.mark.parametrize("key", ["", "id"])
@pytest.mark.parametrize("run_id", ["r1", None])
def test_a_call_without_a_key_of_its_own_is_work(key: str, run_id: str | None) -> None:
    rig = ChildRig()
    rows = set(rig.fold.rows)
    for event in ("succeeded", "started", "started", "failed", "resolved"):
        assert rig.call(event, 7, run_id, idem_key=key) == "applied"
    assert set(rig.fold.rows) == rows


@pytest.mark.parametrize(
    ("error", "actor", "outcome"),
    [(FATAL, None, "rejected not_retryable"), (FATAL, "eve", "applied"), (RETRYABLE, None, "applied")],
)
def test_a_call_that_failed_is_tried_again(error: ErrorInfo, actor: str | None, outcome: str) -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    assert rig.call("failed", error=error) == "applied"
    assert (rig.ended().state, rig.ended().error) == ("failed", error)
    assert rig.call("started", 1, actor=actor) == "rejected invalid_value"
    rig.at += 7
    assert rig.call("started", 2, actor=actor, side_effect=False) == outcome
    if outcome == "applied":
        row = rig.running()
        assert (row.try_number, row.side_effect, row.started_at) == (2, False, rig.at)
        assert rig.call("succeeded", 1) == "rejected invalid_value"
        assert rig.call("succeeded", 2) == "applied"
    else:
        assert rig.ended().state == "failed"


def test_what_did_not_start_has_no_outcome() -> None:
    rig = ChildRig()
    for event in ("succeeded", "failed", "resolved"):
        assert rig.call(event) == "rejected unknown_call"
    assert rig.call("started", run_id="none") == "rejected unknown_run"
    assert rig.call("started", 2) == "rejected invalid_value"
    assert rig.call_row() is None
    assert rig.call("started", run_id=None) == "applied"
    assert rig.call("succeeded") == "rejected unknown_call"


def test_values_of_calls_have_bounds() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    assert rig.call("succeeded", tool_name="other") == "rejected invalid_value"
    assert rig.call("succeeded", 2) == "rejected invalid_value"
    assert rig.call("failed", error=UNCLEAR) == "rejected missing_error_class"
    assert rig.call("resolved") == "rejected illegal_transition"
    assert rig.running().try_number == 1
    assert rig.call("failed", error=RETRYABLE) == "applied"
    assert rig.call("started", 2, tool_name="other") == "rejected invalid_value"


def test_a_call_starts_only_while_its_run_is_at_work_and_ends_in_any_state_of_it() -> None:
    rig = ChildRig()
    for key in ("a", "b", "c"):
        assert rig.call("started", idem_key=key) == "applied"
    assert rig.say("run_paused") == "applied"
    assert rig.call("started") == "rejected illegal_transition"
    assert rig.call("succeeded", idem_key="a") == "applied"
    assert rig.say("run_cancelled") == "applied"
    before = rig.finished_run()
    assert rig.call("started") == "rejected illegal_transition"
    rig.at += 5
    assert rig.call("failed", idem_key="b", error=RETRYABLE) == "applied"
    assert rig.finished_run() == before._replace(run_seq=before.run_seq + 1, last_event_at=rig.at)
    assert rig.call("succeeded", idem_key="none") == "rejected unknown_call"
    assert rig.say("usage_recorded") == "rejected illegal_transition"
    assert rig.call("succeeded", idem_key="id") == "rejected illegal_transition"
    assert rig.finished_run().run_seq == before.run_seq + 1


def test_a_queued_run_calls_nothing() -> None:
    rig = ChildRig()
    assert rig.say("run_queued", "q", mode="detached") == "applied"
    assert rig.call("started", run_id="q") == "rejected illegal_transition"


def test_the_outcome_of_a_sessions_call_is_taken_while_the_session_is_held() -> None:
    rig = ChildRig()
    assert rig.call("started", run_id=None) == "applied"
    assert rig.send(rig.agent, "session_paused") == "applied"
    assert rig.call("started", run_id=None, idem_key="other") == "rejected illegal_transition"
    assert rig.call("succeeded", run_id=None) == "applied"
    assert rig.ended(None).state == "succeeded"


def test_a_row_of_a_call_has_the_bound_of_every_row() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    assert rig.call("succeeded", result_json="😀" * (1 << 20)) == "rejected state_too_large"
    assert "the tool call's row would have" in rig.audits()[-1].reason
    assert rig.call("succeeded", result_json="1" * 2_000) == "applied"
    assert {written[1] for written in rig.written} >= {rig.call_key(), rig.call_key() + b"\x00content"}
    assert rig.ended().result_json == "1" * 2_000


def test_a_replayed_event_of_a_call_fills_no_gap() -> None:
    rig = ChildRig()
    missed = rig.agent.event_bytes("tool_call_started", idem_key="k", try_number=1)
    assert rig.say("message_appended", None) == "applied"
    assert rig.append(rig.agent.key.encoded(), missed, [(REPLAYED_FROM, b"1")]) == "rejected late_filler"
    assert rig.call_row(None) is None


def test_a_record_with_the_key_of_a_call_touches_nothing() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    before = dict(rig.fold.rows)
    assert rig.append(rig.call_key(), rig.agent.event_bytes("tool_call_succeeded")) == "rejected bad_key"
    assert rig.fold.rows == before


def test_the_session_shows_its_last_tool_and_its_last_result() -> None:
    """R-003-55: rejected events and types that are unknown change neither, and are kept."""
    rig = ChildRig()

    def last() -> tuple[str | None, str | None]:
        row = rig.row_of(rig.agent)
        return row.last_tool, row.last_result

    assert last() == (None, None)
    assert rig.call("started", idem_key="id", tool_name="plain") == "applied"
    assert last() == ("plain", None), "a call without a row counts too"
    assert rig.call("started") == "applied"
    assert rig.call("succeeded", result_json="1" * 300) == "applied"
    assert last() == ("pay", "1" * 256)
    newer = b"\xc3\x01" + b"\x07" * 8 + b"an event of a newer release"
    assert rig.append(rig.agent.key.encoded(), newer) == "rejected unknown_schema"
    assert rig.letter().value == newer
    assert rig.call("succeeded", result_json="2") == "rejected illegal_transition"
    assert last() == ("pay", "1" * 256)
    assert rig.call("started", idem_key="other", tool_name="mail") == "applied"
    assert last() == ("mail", "1" * 256)
    error = ErrorInfo("fatal", "http_403", "forbidden")
    assert rig.call("failed", idem_key="other", tool_name="mail", error=error) == "applied"
    assert last() == ("mail", "failed: http_403: forbidden")
    assert rig.call("succeeded", idem_key="id", tool_name="plain", result_json=None) == "applied"
    assert last() == ("mail", "null")
