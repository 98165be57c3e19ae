"""What the control API answers about a task, which is asked for by its id alone."""

from sessionary.schemas.ids import SessionKey, new_session_id, new_task_id
from tests.core.stream_processors.api.run_rig import RunRig


def rig_with_task() -> tuple[RunRig, str]:
    """Return a rig whose session has asked for a task, and the task's id."""
    rig = RunRig()
    task_id = new_task_id(rig.agent.key)
    queued = {"mode": "detached", "task_type": "model_training", "input_json": "[1]"}
    assert rig.send("run_queued", task_id, **queued) == "applied"
    return rig, task_id


def test_a_task_is_reported_by_its_id_in_any_case_of_letters() -> None:
    rig, task_id = rig_with_task()
    for name in (task_id, task_id.upper()):
        status, task = rig.ask_task(name)
        assert (status, task["run_id"], task["state"], task["version"]) == (200, task_id, "queued", "1.queued")
    assert task["session_id"] == rig.agent.key.session_id
    assert rig.send("run_started", task_id, mode="detached") == "applied"
    assert rig.ask_task(task_id)[1]["version"] == "2.started"


def test_a_task_of_another_tenant_and_an_unknown_one_have_the_same_answer() -> None:
    rig, task_id = rig_with_task()
    others = new_task_id(SessionKey("zeta", new_session_id()))
    foreign, unknown, mine = (
        rig.ask_task(task_id, token="other"),
        rig.ask_task(others, token="other"),
        rig.ask_task(others),
    )
    for status, problem in (foreign, unknown, mine):
        assert (status, problem["reason"], problem["title"]) == (404, "unknown_task", "Unknown task")
    # All that differs is the id and the tenant, both of which the caller knows.
    assert foreign[1]["detail"].replace(task_id, others) == unknown[1]["detail"]
    for event_type, fields in (("run_started", {"mode": "detached"}), ("run_running", {"progress": None})):
        assert rig.send(event_type, task_id, **fields) == "applied"
    assert rig.send("run_completed", task_id, result_json='"secret"', artifact_id=None) == "applied"
    assert rig.ask_task(task_id)[1]["result_json"] == '"secret"'
    finished = rig.ask_task(task_id, token="other")
    assert finished == foreign


def test_what_is_no_task_of_the_session_is_unknown() -> None:
    rig, _ = rig_with_task()
    assert rig.send("run_started", "r1", mode="detached") == "applied"
    for name in ("r1", "", "11111111-1111-4111-8111-111111111111"):
        assert rig.ask_task(name)[0] == 404
