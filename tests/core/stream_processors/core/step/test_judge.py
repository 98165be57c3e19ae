"""What events come to for the steps that they name."""

import pytest

from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import run_key, step_key
from sessionary.schemas.records import RunTombstone
from sessionary.schemas.types import ErrorInfo
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.core.child_rig import FATAL, RETRYABLE, UNCLEAR, ChildRig
from tests.support.event_factory import TICK


def test_a_step_begins_and_succeeds() -> None:
    rig = ChildRig()
    assert rig.step("started", input_json="[1]") == "applied"
    row = rig.found_step()
    assert (row.state, row.attempt, row.step_id, row.input_json, row.output_json) == ("running", 1, "id-1", "[1]", None)
    assert row.started_at == row.entered_at == rig.at
    rig.at += 10
    assert rig.step("succeeded", output_json="2") == "applied"
    row = rig.found_step()
    assert (row.state, row.attempt, row.input_json, row.output_json) == ("succeeded", 1, "[1]", "2")
    assert (row.started_at, row.entered_at) == (rig.at - 10, rig.at)
    assert (rig.found().run_seq, rig.found().last_event_at) == (4, rig.at)


def test_a_step_that_failed_is_tried_again_with_nothing_of_the_last_attempt() -> None:
    rig = ChildRig()
    assert rig.step("started", input_json="1") == "applied"
    assert rig.step("failed", error=RETRYABLE) == "applied"
    assert (rig.found_step().state, rig.found_step().error) == ("failed", RETRYABLE)
    assert rig.step("started", 1) == "rejected invalid_value"
    assert rig.step("started", 3) == "rejected invalid_value"
    rig.at += 5
    assert rig.step("started", 2, input_json=None) == "applied"
    row = rig.found_step()
    assert (row.state, row.attempt, row.step_id, row.input_json, row.error) == ("running", 2, "id-2", None, None)
    assert row.started_at == row.entered_at == rig.at


def test_an_attempt_that_was_interrupted_is_followed_by_the_next() -> None:
    rig = ChildRig()
    assert rig.step("started") == "applied"
    assert rig.step("started") == "rejected invalid_value"
    assert rig.step("started", 2) == "applied"
    assert rig.step("succeeded", 1, output_json="1") == "rejected invalid_value"
    assert rig.step("failed", 1, error=RETRYABLE) == "rejected invalid_value"
    assert rig.step("succeeded", 2, output_json="1") == "applied"


@pytest.mark.parametrize(
    ("error", "actor", "outcome"),
    [(FATAL, None, "rejected not_retryable"), (FATAL, "eve", "applied"), (RETRYABLE, None, "applied")],
)
def test_a_fatal_error_needs_an_actor(error: ErrorInfo, actor: str | None, outcome: str) -> None:
    rig = ChildRig()
    assert rig.step("started") == "applied"
    assert rig.step("failed", error=error) == "applied"
    before = rig.found_step()
    assert rig.step("started", 2, actor=actor) == outcome
    assert (rig.found_step() == before) == (outcome != "applied")


def test_values_of_steps_have_bounds() -> None:
    rig = ChildRig()
    assert rig.step("started", 2) == "rejected invalid_value"
    assert rig.step("started") == "applied"
    assert rig.step("succeeded", output_json=None) == "rejected invalid_value"
    assert rig.step("failed", error=UNCLEAR) == "rejected missing_error_class"
    assert rig.found_step().state == "running"
    assert rig.found().run_seq == 3


@pytest.mark.parametrize(
    ("path", "rejected"),
    [
        ([], ["succeeded", "failed"]),
        (["started"], ["skipped"]),
        (["started", "failed"], ["succeeded", "failed", "skipped"]),
        (["started", "succeeded"], ["started", "succeeded", "failed"]),
        (["skipped"], ["started", "succeeded", "failed"]),
    ],
)
def test_any_other_pair_is_illegal(path: list[str], rejected: list[str]) -> None:
    rig = ChildRig()
    for event in path:
        assert rig.step(event) == "applied"
    before = rig.step_row()
    for event in rejected:
        assert rig.step(event, 1) == "rejected illegal_transition"
    assert rig.step_row() == before


def test_a_step_is_skipped_before_any_attempt_or_once_more() -> None:
    rig = ChildRig()
    assert rig.step("skipped") == "applied"
    row = rig.found_step()
    assert (row.state, row.attempt, row.started_at, row.entered_at) == ("skipped", 0, rig.at, rig.at)
    rig.at += 5
    assert rig.step("skipped") == "applied"
    assert rig.found_step() == row
    assert rig.found().run_seq == 4
    assert rig.step("started", name="b") == "applied"
    assert rig.step("succeeded", name="b") == "applied"
    before = rig.found_step("b")
    assert rig.step("skipped", name="b") == "applied"
    assert rig.found_step("b") == before


def test_an_attempt_begins_only_while_its_run_is_at_work() -> None:
    rig = ChildRig()
    assert rig.step("started") == "applied"
    assert rig.say("run_paused") == "applied"
    assert rig.step("started", 2) == "rejected illegal_transition"
    assert rig.step("started", name="b") == "rejected illegal_transition"
    assert rig.step("skipped", name="b") == "applied"
    assert rig.step("failed", error=RETRYABLE) == "applied"
    assert rig.say("run_queued", "q", mode="detached") == "applied"
    assert rig.step("started", run_id="q") == "rejected illegal_transition"
    assert rig.step("started", run_id="none") == "rejected unknown_run"
    assert rig.say("run_cancelled") == "applied"
    assert rig.step("started", 2) == "rejected illegal_transition"


@pytest.mark.parametrize("run_id", [None, ""])
def test_without_a_run_a_step_is_work(run_id: str | None) -> None:
    rig = ChildRig()
    rows = set(rig.fold.rows)
    for event in ("succeeded", "started", "failed", "skipped"):
        assert rig.step(event, 7, run_id) == "applied"
    assert set(rig.fold.rows) == rows


def test_a_row_of_a_step_has_the_bound_of_every_row() -> None:
    rig = ChildRig()
    wide = "😀" * (1 << 19)
    assert rig.step("started", input_json=wide) == "applied"
    assert rig.step("succeeded", output_json=wide) == "rejected state_too_large"
    assert "the step's row would have" in rig.audits()[-1].reason
    assert rig.found_step().state == "running"
    assert rig.step("succeeded", output_json="1") == "applied"


def test_a_large_content_is_a_record_of_its_own() -> None:
    rig = ChildRig()
    assert rig.step("started", input_json="1" * 2_000) == "applied"
    key = step_key(run_key(*rig.agent.key, "r1"), "a")
    sizes = {written[1]: len(written[2] or b"") for written in rig.written if (written[1] or b"").startswith(key)}
    assert set(sizes) == {key, key + b"\x00content"}
    assert sizes[key] < 500


def test_a_replayed_event_of_a_step_fills_no_gap() -> None:
    rig = ChildRig()
    missed = rig.agent.event_bytes("step_started", {"run_id": "r1"})
    assert rig.say("message_appended") == "applied"
    assert rig.append(rig.agent.key.encoded(), missed, [(REPLAYED_FROM, b"1")]) == "rejected late_filler"


def test_steps_vanish_with_their_run() -> None:
    rig = ChildRig()
    run = run_key(*rig.agent.key, "r1")
    live, vanishing = rig.fold.live, rig.fold.vanishing
    for name in ("a", "b"):
        assert rig.step("started", name=name, input_json="1" * 2_000) == "applied"
    assert rig.fold.children(run) == [step_key(run, "a"), step_key(run, "b")]
    assert (rig.fold.live, rig.fold.vanishing) == (live, vanishing)
    assert rig.say("run_completed") == "applied"
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.at + FINISHED_RUN_MS - 1_000))
    rig.at += FINISHED_RUN_MS
    rig.append(None, TICK)
    left = {key: type(row) for key, row in rig.fold.rows.items() if key.startswith(run)}
    assert left == {run: RunTombstone}
    assert rig.fold.children(run) == []
    deletions = {written[1] for written in rig.written if written[2] is None}
    assert {step_key(run, "a"), step_key(run, "b")} <= deletions


def test_children_are_known_again_once_the_rows_are_loaded() -> None:
    rig = ChildRig()
    run = run_key(*rig.agent.key, "r1")
    assert rig.step("started") == "applied"
    assert rig.call("started") == "applied"
    live, vanishing = rig.fold.live, rig.fold.vanishing
    rig.fold.finish_loading()
    assert set(rig.fold.children(run)) == {step_key(run, "a"), rig.call_key()}
    assert (rig.fold.live, rig.fold.vanishing) == (live, vanishing)


def test_work_that_is_only_reported_as_a_step_has_no_row() -> None:
    rig = ChildRig()
    for event in ("started", "succeeded", "started", "started", "failed"):
        assert rig.step(event, 0) == "applied"
    assert rig.step_row() is None
    assert rig.found().run_seq == 7
