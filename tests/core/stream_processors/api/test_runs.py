"""What the control API answers about the runs of a session."""

from sessionary.schemas.records import RunTombstone
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.core.run.rows import RUN_TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import DAY_MS
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.api.run_rig import RunRig


def test_an_open_run_is_shown_with_its_deadline_and_a_finished_one_with_its_result() -> None:
    rig = RunRig()
    began = rig.rig.at
    assert rig.send("run_started", "r1", mode="attached", input_json="[1]", plan_json=None) == "applied"
    assert rig.send("run_running", "r1", progress=0.25) == "applied"
    status, run = rig.ask_run("r1")
    assert status == 200
    shown = {
        name: run[name] for name in ("run_id", "mode", "state", "run_seq", "progress", "input_json", "result_json")
    }
    assert shown == {
        "run_id": "r1",
        "mode": "attached",
        "state": "running",
        "run_seq": 2,
        "progress": 0.25,
        "input_json": "[1]",
        "result_json": None,
    }
    assert (run["deadline_ms"], run["error"], run["rules"]) == (began + 900_000, None, 2)
    assert rig.send("run_completed", "r1", result_json='"done"', artifact_id=None) == "applied"
    status, run = rig.ask_run("r1")
    assert (status, run["state"], run["result_json"], run["deadline_ms"]) == (200, "completed", '"done"', None)


def test_the_error_of_a_failed_run_is_shown() -> None:
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    rig.send("run_running", "r1", progress=None)
    rig.send("run_failed", "r1", error=ErrorInfo("fatal", "bad_input", "no such month"))
    _, run = rig.ask_run("r1")
    assert run["state"] == "failed"
    assert (run["error"]["error_class"], run["error"]["code"], run["error"]["message"]) == (
        "fatal",
        "bad_input",
        "no such month",
    )


def test_the_open_runs_are_listed_in_the_order_in_which_they_began() -> None:
    rig = RunRig()
    for run_id in ("b", "a", "c"):
        rig.send("run_started", run_id, mode="detached")
    rig.send("run_cancelled", "a", reason=None)
    status, found = rig.ask_run(None)
    assert status == 200
    assert [run["run_id"] for run in found["runs"]] == ["b", "c"]
    assert found["position"] == {"partition": 0, "next_offset": rig.rig.fold.position.next_offset}


def test_an_unknown_run_and_one_of_another_tenant_have_the_same_answer() -> None:
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    unknown, foreign = rig.ask_run("r2"), rig.ask_run("r1", token="other")
    assert (unknown[0], unknown[1]["reason"]) == (foreign[0], foreign[1]["reason"]) == (404, "unknown_run")


def test_an_answer_waits_for_a_record_and_tells_its_verdict() -> None:
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    offset = rig.rig.fold.position.next_offset - 1
    status, run = rig.ask_run("r1", query=f"?after=0:{offset}")
    assert (status, run["verdict"]["outcome"]) == (200, "applied")
    assert rig.ask_run("r1", query=f"?after=0:{offset + 1}&wait_ms=0")[0] == 503
    assert rig.send("run_completed", "r1", result_json=None, artifact_id=None) == "rejected illegal_transition"
    _, run = rig.ask_run("r1", query=f"?after=0:{offset + 1}")
    assert (run["state"], run["verdict"]["outcome"], run["verdict"]["reason"]) == (
        "started",
        "rejected",
        "illegal_transition",
    )


def test_a_run_shows_its_last_checkpoint() -> None:
    rig = RunRig()
    rig.send("run_started", "r1", mode="attached")
    _, run = rig.ask_run("r1")
    assert run["checkpoint"] is None
    saved = {"operation": "fetch", "stage": "pages", "processed_count": 5, "last_item_id": "p5", "bytes_written": 9}
    rig.send("checkpoint_saved", "r1", checkpoint_id="c1", kind="sources_fetched", data_json="{}", **saved)
    _, run = rig.ask_run("r1")
    assert run["checkpoint"] == {"checkpoint_id": "c1", "kind": "sources_fetched", "at_ms": rig.rig.at, **saved}
    schema = DOCUMENT["components"]["schemas"]["Run"]["properties"]["checkpoint"]["oneOf"][0]
    assert set(schema["properties"]) == set(run["checkpoint"])


def test_a_step_with_a_limit_shows_when_its_attempt_fails() -> None:
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    rig.send("step_started", "r1", name="draft", attempt=1, input_json="[1]", limit_ms=2_000)
    began = rig.rig.at
    _, step = rig.ask("runs", "r1", "steps", "draft")
    assert (step["state"], step["deadline_ms"], step["limit_ms"]) == ("running", began + 2_000, 2_000)
    assert (step["attempt"], step["input_json"], step["entered_ms"]) == (1, "[1]", began)
    _, found = rig.ask("runs", "r1", "steps")
    assert [one["name"] for one in found["steps"]] == ["draft"]
    assert set(step) == set(DOCUMENT["components"]["schemas"]["Step"]["properties"])
    rig.rig.advance(3_000)
    _, step = rig.ask("runs", "r1", "steps", "draft")
    assert (step["state"], step["deadline_ms"], step["limit_ms"]) == ("failed", None, None)
    assert step["error"]["code"] == "model_limit"


def test_a_run_that_vanished_is_gone_for_its_tenant_alone_packed_or_not() -> None:
    rig = RunRig()
    for run_id in ("r1", "r2", "r3"):
        rig.send("run_started", run_id, mode="detached")
        rig.send("run_running", run_id, progress=None)
    answers = {}
    for run_id in ("r1", "r2", "r3"):  # tombstones are packed in twos
        assert rig.send("run_completed", run_id, result_json=None, artifact_id=None) == "applied"
    assert rig.ask_run("r1")[0] == 200
    rig.rig.at += FINISHED_RUN_MS
    rig.rig.tick()
    states = {rig.rig.fold.is_packed(rig.run_key(run_id)) for run_id in ("r1", "r2", "r3")}
    assert True in states
    for run_id in ("r1", "r2", "r3"):
        answers[run_id] = rig.ask_run(run_id), rig.ask("runs", run_id, "steps"), rig.ask_run(run_id, token="other")
    for gone, steps, foreign in answers.values():
        assert [(status, body["reason"]) for status, body in (gone, steps)] == [(410, "run_gone")] * 2
        assert (foreign[0], foreign[1]["reason"]) == (404, "unknown_run")
    rig.rig.fold.load(rig.run_key("r9"), RunTombstone(rig.rig.at + 1))
    assert rig.ask_run("r9")[0] == 410
    rig.rig.at += RUN_TOMBSTONE_MS + DAY_MS
    rig.rig.tick()
    assert [rig.ask_run(run_id)[0] for run_id in answers] == [404] * 3
