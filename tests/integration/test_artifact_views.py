"""What analysts see of artifacts, messages, checkpoints and attached runs."""

from typing import Any

import pytest

from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import encode_event, encode_record
from sessionary.schemas.events import (
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactCreated,
    CheckpointSaved,
    MessageAppended,
    RunCompleted,
    RunRunning,
    RunStarted,
    StepStarted,
    StepSucceeded,
)
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import Runs
from tests.support.clickhouse_rows import insert_block

SHA = "ab" * 32
ATTACHED = RunStarted("attached", "chat")


@pytest.fixture
def runs(tables: ClickHouseSettings) -> Runs:
    return Runs(tables)


def checkpoint(number: int, **fields: Any) -> CheckpointSaved:
    return CheckpointSaved(f"c{number}", "pages", "text", number, f"p{number}", 10 * number, **fields)


def lose_connection(runs: Runs, offset: int, seq: int, run: str = "r1") -> None:
    states = {"event_type": "run_paused", "to_run_state": "paused", "reason_code": "connection_lost"}
    runs.decide(offset, seq, kind="run", run_id=run, **states)


def test_an_artifact_is_one_row_from_its_creation_to_its_completion(runs: Runs) -> None:
    runs.send(ATTACHED, ArtifactCreated("f1", "markdown", "file:///s/streams/f1"))
    columns = "run_id, artifact_type, uri, state, size_bytes, sha256, chunks"
    wanted = ("r1", "markdown", "file:///s/streams/f1")
    assert runs.ask(f"SELECT {columns} FROM v_artifacts") == [(*wanted, "open", None, None, 0)]
    runs.send(ArtifactChunkAppended("f1", 0, 9, SHA), ArtifactCompleted("f1", 9, SHA))
    assert runs.ask(f"SELECT {columns} FROM v_artifacts") == [(*wanted, "complete", 9, SHA, 1)]


def test_an_artifact_has_the_name_and_the_media_type_of_its_first_event(runs: Runs) -> None:
    named = ArtifactCreated("f1", "invoice", "file:///f1", "may.pdf", "application/pdf")
    runs.send(ATTACHED, named, named._replace(file_name="june.pdf"), ArtifactCreated("f2", "json", "file:///f2"))
    found = runs.ask("SELECT artifact_id, file_name, media_type FROM v_artifacts ORDER BY artifact_id")
    assert found == [("f1", "may.pdf", "application/pdf"), ("f2", None, None)]


def test_a_rejected_event_of_an_artifact_or_a_message_counts_nowhere_also_if_it_is_rejected_later(runs: Runs) -> None:
    runs.send(ATTACHED, ArtifactCreated("f1", "json", "file:///f1"))
    forged = runs.send(ArtifactCompleted("f1", 9, SHA), ArtifactCreated("f2", "json", "file:///f2"))
    message = runs.send(MessageAppended("user", "hello"))
    assert runs.ask("SELECT state FROM v_artifacts ORDER BY artifact_id") == [("complete",), ("open",)]
    assert runs.ask("SELECT turn FROM v_messages") == [(1,)]
    for offset in (forged - 1, forged, message):
        runs.reject(offset)
    assert runs.ask("SELECT artifact_id, state, sha256 FROM v_artifacts") == [("f1", "open", None)]
    assert runs.ask("SELECT turn FROM v_messages") == []


def test_turns_are_numbered_and_no_view_has_their_content(runs: Runs) -> None:
    runs.send(MessageAppended("user", "my secret"), run=None)
    runs.send(MessageAppended("tool", None, "f1", "search"))
    runs.deliver(runs.sent[0])  # delivered again
    found = runs.ask("SELECT turn, run_id, role, name, artifact_id, has_content FROM v_messages ORDER BY turn")
    assert found == [(1, None, "user", None, None, True), (2, "r1", "tool", "search", "f1", False)]
    assert "my secret" not in str(runs.ask("SELECT * FROM v_messages")) + str(runs.ask("SELECT * FROM v_run_events"))


def test_the_last_checkpoint_of_each_run_is_named(runs: Runs) -> None:
    runs.send(ATTACHED, checkpoint(65), checkpoint(70, kind="sources_fetched"))
    runs.send(ATTACHED, checkpoint(3), run="r2")
    runs.reject(runs.send(checkpoint(99)))
    columns = "run_id, number, checkpoint_id, kind, operation, stage, processed_count, last_item_id, bytes_written"
    assert runs.ask(f"SELECT {columns} FROM v_checkpoints WHERE is_last ORDER BY run_id") == [
        ("r1", 2, "c70", "sources_fetched", "pages", "text", 70, "p70", 700),
        ("r2", 1, "c3", "", "pages", "text", 3, "p3", 30),
    ]
    assert runs.ask("SELECT count() AS n FROM v_checkpoints") == [(3,)]


def test_a_checkpoint_has_its_data_whole(runs: Runs) -> None:
    data = f'{{"pages":"{"x" * 5_000}"}}'
    runs.send(ATTACHED, checkpoint(65, data_json=data), checkpoint(70))
    assert runs.ask("SELECT data FROM v_checkpoints ORDER BY number") == [(data,), (None,)]


def test_attached_runs_that_are_open_have_their_age_and_detached_or_finished_ones_do_not_count(runs: Runs) -> None:
    runs.send(ATTACHED)
    runs.send(ATTACHED, RunCompleted(), run="r2")
    runs.send(RunStarted("detached", "report"), run="r3")
    (row,) = runs.ask("SELECT run_id, status, is_connected, connection_lost, age_s FROM v_attached_runs")
    assert row[:4] == ("r1", "started", True, False)
    assert 86_300 < row[4] < 90_000  # its rows are a day old
    assert runs.ask("SELECT tenant_id, count() AS n FROM v_attached_runs WHERE is_connected GROUP BY ALL") == [
        ("acme", 1)
    ]


def test_a_lost_connection_is_listed_with_the_checkpoint_before_it(runs: Runs) -> None:
    last = runs.send(ATTACHED, checkpoint(70), RunRunning(0.35))
    lose_connection(runs, last + 1, 9)
    found = runs.ask("SELECT run_id, status, is_connected, connection_lost, processed_count FROM v_attached_runs")
    assert found == [("r1", "paused", False, True, 70)]
    # What comes afterwards is no checkpoint of that loss; a run without one is listed too.
    last = runs.send(ATTACHED, RunRunning(0.1), run="r2")
    lose_connection(runs, last + 1, 10, "r2")
    runs.send(checkpoint(80), RunCompleted())
    columns = "run_id, state, checkpoint_id, checkpoint_operation, processed_count, checkpoint_at IS NULL AS none"
    assert runs.ask(f"SELECT {columns} FROM v_lost_connections ORDER BY run_id") == [
        ("r1", "paused", "c70", "pages", 70, False),
        ("r2", "paused", "", "", None, True),
    ]


def test_what_the_processor_says_of_a_lost_connection_is_what_the_views_list(runs: Runs) -> None:
    """The records of a session that falls silent, as the core judges it."""
    memory = InMemoryTransport(partitions=1)
    client, _ = memory_client(memory=memory, on_timed_out=lambda _: None, on_rejected=lambda _: None)
    with client, client.session(user_id="u") as session, session.run("train") as run:
        saved = run.checkpoint("draft_made", "pages", processed_count=3)
        memory.silence(session)
        memory.advance(600)
    base_us = runs.at_us(0)
    for judged in memory.verdicts():
        insert_block(
            runs.rows.clickhouse,
            "history",
            [(base_us + judged.offset, judged.offset, encode_event(judged.event))],
            f"event {judged.offset}",
        )
    for number, record in enumerate(memory.audit()):
        at_us = base_us + record.source_offset
        insert_block(runs.rows.clickhouse, "audit", [(at_us, number, encode_record(record))], f"audit {number}")
    columns = "run_id, state, reason, checkpoint_id, checkpoint_kind, checkpoint_operation, processed_count"
    assert runs.ask(f"SELECT {columns} FROM v_lost_connections") == [
        (run.run_id, "paused", "The session timed out: inactive", saved, "draft_made", "pages", 3)
    ]
    (when,) = runs.ask("SELECT toUnixTimestamp64Milli(time) AS ms FROM v_lost_connections")
    (lost,) = [each for each in memory.audit() if each.reason_code == "connection_lost"]
    assert when == (lost.appended_at // 1_000,)


def test_progress_is_shown_as_reported_also_where_it_falls(runs: Runs) -> None:
    reported = [0.2, 0.9, 0.4, 0.5]  # as of a task that a second worker begins again
    runs.send(ATTACHED, *(RunRunning(progress) for progress in reported))
    series = runs.ask("SELECT progress FROM v_run_events WHERE event_type = 'run_running' ORDER BY seq")
    assert [value for (value,) in series] == reported
    assert runs.ask("SELECT progress FROM v_runs") == [(0.5,)]


def test_events_of_a_run_are_numbered_without_gap_or_repetition_whoever_writes_them(runs: Runs) -> None:
    """Two writers and a restarted one take turns; one event is rejected, one comes twice."""
    runs.send(ATTACHED, RunRunning(0.1), producer_id="p1")
    runs.send(StepStarted("a", 1), producer_id="p2", producer_seq=1)
    rejected = runs.send(RunCompleted('"forged"'), producer_id="p2", producer_seq=2)
    runs.send(checkpoint(5), producer_id="p1")
    runs.deliver(runs.sent[2])
    runs.send(StepSucceeded("a", 1), producer_id="p3", producer_seq=1)  # p2, started again
    runs.send(RunCompleted(), producer_id="p1")
    runs.reject(rejected)
    found = runs.ask("SELECT seq, event_type, source_offset FROM v_run_events WHERE run_id = 'r1' ORDER BY seq")
    assert [row[:2] for row in found] == list(
        enumerate(
            ("run_started", "run_running", "step_started", "checkpoint_saved", "step_succeeded", "run_completed"), 1
        )
    )
    assert [row[2] for row in found] == sorted(row[2] for row in found)
