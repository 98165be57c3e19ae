"""What tasks come to, at the end and before; large values are artifacts, read by any process."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, SessionClient, SettingsError, Unavailable
from sessionary.producers.artifacts import ArtifactLibrary, FolderStore
from sessionary.producers.artifacts.library import body_name, deleted_name
from sessionary.producers.durable.large_values import VALUE_BYTES_MAX
from sessionary.producers.ports import Json
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskFunction
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ArtifactCreated, RunCompleted
from tests.core.producers.tasks.test_tasks import Stage

LARGE = {"pages": ["x" * 1_000] * 300}
HUGE = "y" * (2 << 20)


def carry_out(stage: Stage, function: TaskFunction, library: ArtifactLibrary | None) -> str:
    """Carry out a task with a function; return its id."""
    task_id, request = stage.start("work")
    stage.attempt(request, artifacts=library).carry_out({"work": function})
    assert stage.memory.rejections() == []
    return task_id


def reader(stage: Stage, library: ArtifactLibrary | None) -> SessionClient:
    """Return the client of another process of the tenant."""
    client, _ = memory_client(agent_id="another-process", memory=stage.memory, artifacts=library)
    return client


@pytest.mark.parametrize("value", [LARGE, HUGE])
def test_a_large_result_is_an_artifact_that_another_process_reads(tmp_path: Path, value: Json) -> None:
    stage, library = Stage(), ArtifactLibrary(tmp_path)
    task_id = carry_out(stage, lambda ctx, given: value, library)
    (created,) = (payload for payload in stage.payloads(task_id) if isinstance(payload, ArtifactCreated))
    completed = stage.payloads(task_id)[-1]
    assert isinstance(completed, RunCompleted)
    assert completed.artifact_id == created.artifact_id
    assert len(completed.result_json or "") < 1_000
    reported = reader(stage, library).get_task_results(task_id)
    assert reported == {"task_id": task_id, "status": "completed", "result": value}
    with pytest.raises(SettingsError, match="SESSIONARY_ARTIFACTS_URL"):
        reader(stage, None).get_task_results(task_id)


def test_a_result_that_an_event_can_hold_needs_no_library(tmp_path: Path) -> None:
    stage, text = Stage(), "x" * (VALUE_BYTES_MAX - 2)
    task_id = carry_out(stage, lambda ctx, given: text, ArtifactLibrary(tmp_path))
    assert reader(stage, None).get_task_results(task_id)["result"] == text
    task_id = carry_out(stage, lambda ctx, given: LARGE, None)
    assert reader(stage, None).get_task_results(task_id)["result"] == LARGE


def test_a_result_that_nothing_can_keep_says_what_to_set() -> None:
    stage = Stage()
    task_id = carry_out(stage, lambda ctx, given: HUGE, None)
    view = stage.client.find_task(task_id)
    assert view is not None
    assert view.error is not None
    assert (view.state, view.error.error_class) == ("failed", "retryable")
    assert "SESSIONARY_ARTIFACTS_URL" in view.error.message


def test_a_store_that_takes_nothing_fails_a_task_only_if_no_event_can_hold_the_result(tmp_path: Path) -> None:
    class BrokenStore(FolderStore):
        def write(self, name: str, body: bytes) -> None:
            raise Unavailable("the disk is full", 1.0)

    stage, library = Stage(), ArtifactLibrary(BrokenStore(tmp_path))
    for value, state in ((LARGE, "completed"), (HUGE, "failed")):
        task_id = carry_out(stage, partial(lambda value, ctx, given: value, value), library)
        assert stage.client.check_task_status(task_id)["status"] == state
    assert len(stage.errors) == 1


def test_intermediate_results_are_read_while_the_task_runs_and_the_last_of_a_name_counts(tmp_path: Path) -> None:
    stage, library, reported = Stage(), ArtifactLibrary(tmp_path), list[dict[str, Json]]()

    def train(ctx: TaskContext, given: Json) -> str:
        for loss in (0.4, 0.2):
            ctx.save_result("best", {"loss": loss})
            ctx.save_result(f"epoch-{loss}", LARGE)
            ctx.report_progress(1 - loss)
            reported.append(reader(stage, library).get_intermediate_results(ctx.task_id))
        return f"{ctx.save_artifact(b'weights', 'weights', file_name='w.bin').reference}"

    task_id = carry_out(stage, train, library)
    first = {"best": {"loss": 0.4}, "epoch-0.4": LARGE}
    later = {"best": {"loss": 0.2}, "epoch-0.4": LARGE, "epoch-0.2": LARGE}
    assert reported == [{"task_id": task_id, "status": "running", "results": each} for each in (first, later)]
    client = reader(stage, library)
    assert client.get_intermediate_results(task_id) == {"task_id": task_id, "status": "completed", "results": later}
    assert library.load(client.get_task_results(task_id)["result"]) == b"weights"
    # Any client sees which there are, without a library too.
    types = [artifact.artifact_type for artifact in stage.session.records.artifacts(task_id)]
    best = "intermediate.best"
    assert types == [best, "intermediate.epoch-0.4", best, "intermediate.epoch-0.2", "weights"]


def test_a_task_that_failed_keeps_what_it_saved(tmp_path: Path) -> None:
    stage, library = Stage(), ArtifactLibrary(tmp_path)

    def fail(ctx: TaskContext, given: Json) -> None:
        ctx.save_result("half", 1)
        raise TimeoutError("the model server is silent")

    task_id = carry_out(stage, fail, library)
    reported = {"task_id": task_id, "status": "failed", "results": {"half": 1}}
    assert reader(stage, library).get_intermediate_results(task_id) == reported
    with pytest.raises(SettingsError, match="1 intermediate results"):
        reader(stage, None).get_intermediate_results(task_id)
    (saved,) = stage.session.records.artifacts(task_id)  # and once its body has expired
    library.store.write(deleted_name(f"{saved.sha256}"), library.store.read(body_name(f"{saved.sha256}")))
    library.store.remove(body_name(f"{saved.sha256}"))
    assert reader(stage, library).get_intermediate_results(task_id) == {**reported, "results": {}}


def test_without_a_library_or_a_name_nothing_is_saved(tmp_path: Path) -> None:
    stage, said = Stage(), list[str]()

    def work(ctx: TaskContext, given: Json) -> None:
        for name in ("half", ""):
            try:
                ctx.save_result(name, 1)
            except (SettingsError, Invalid) as error:
                said.append(str(error))

    carry_out(stage, work, None)
    task_id = carry_out(stage, work, ArtifactLibrary(tmp_path))
    assert ["SESSIONARY_ARTIFACTS_URL" in text for text in said] == [True, False, False]
    assert reader(stage, ArtifactLibrary(tmp_path)).get_intermediate_results(task_id)["results"] == {"half": 1}


def test_of_unknown_tasks_there_is_no_intermediate_result() -> None:
    client, _ = memory_client()
    for task_id in ("no id", "11111111-1111-8111-8111-111111111111"):
        assert client.get_intermediate_results(task_id) == {"error": "task not found"}


def test_intermediate_results_of_asyncio(tmp_path: Path) -> None:
    stage, library = Stage(), ArtifactLibrary(tmp_path)
    task_id = carry_out(stage, lambda ctx, given: f"{ctx.save_result('half', 1).reference}", library)
    client = AsyncSessionClient.wrap(reader(stage, library))
    assert asyncio.run(client.get_intermediate_results(task_id))["results"] == {"half": 1}
