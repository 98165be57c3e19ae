"""Values that are too large for events are artifacts; results come back when work is resumed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Invalid,
    Json,
    ProducerSettings,
    ResultTooLarge,
    Retry,
    Session,
    SettingsError,
    TookEffect,
    Unavailable,
    tool,
)
from sessionary.producers.artifacts import ArtifactLibrary, FolderStore
from sessionary.producers.durable.call_keys import idempotency_key
from sessionary.producers.durable.large_values import VALUE_BYTES_MAX
from sessionary.producers.errors import ArtifactDamaged
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    ArtifactCompleted,
    ArtifactCreated,
    RunCompleted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.limits import CONTENT_CHARACTERS_MAX

LARGE = {"pages": ["x" * 1_000] * 300}
T = TypeVar("T")
HUGE = "y" * (CONTENT_CHARACTERS_MAX + 1)


class Source:
    """Returns a value, and counts how often it was asked."""

    def __init__(self, value: Json) -> None:
        self.value = value
        self.calls = 0

    def read(self) -> Json:
        self.calls += 1
        return self.value


class BrokenStore(FolderStore):
    """Takes nothing."""

    def write(self, name: str, body: bytes) -> None:
        raise Unavailable(f"{name}: the disk is full", 1.0)


def found(memory: InMemoryTransport, kind: type[T]) -> list[T]:
    return [event.payload for event in memory.events() if isinstance(event.payload, kind)]


def leave(session: Session) -> None:
    """Let the process of run `r` die: nothing says that it ended."""
    run = session.run("report", run_id="r")
    run.__enter__()
    run._leave_metadata()


def test_a_large_result_of_a_tool_is_an_artifact_and_comes_back(tmp_path: Path) -> None:
    source = Source(LARGE)
    read = tool(name="read", effect="write", once=True)(source.read)
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report"):
        assert [read(), read()] == [LARGE, LARGE]
    assert source.calls == 1
    (created,), (completed,) = found(memory, ArtifactCreated), found(memory, ArtifactCompleted)
    (succeeded,) = found(memory, ToolCallSucceeded)
    assert succeeded.artifact_id == created.artifact_id == completed.artifact_id
    assert succeeded.result_json is not None
    reference = json.loads(succeeded.result_json)
    assert reference.keys() == {"artifact_ref", "summary"}
    assert reference["artifact_ref"] == f"artifact:tool_result:{completed.sha256}"
    assert reference["summary"].startswith("dict, 1 items, ")
    assert len(succeeded.result_json) < 1_000
    assert client.artifacts is not None
    assert json.loads(client.artifacts.load(reference["artifact_ref"])) == LARGE
    assert memory.rejections() == []


@pytest.mark.parametrize(("size", "count"), [(VALUE_BYTES_MAX, 0), (VALUE_BYTES_MAX + 1, 1)])
def test_a_value_of_256_kib_is_still_in_its_event(tmp_path: Path, size: int, count: int) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("collect", lambda: "x" * (size - 2))  # JSON adds two quotes
    assert len(found(memory, ArtifactCreated)) == count


def test_equal_results_are_stored_once(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("first", lambda: LARGE)
        run.step("second", lambda: LARGE)
    assert len({artifact.artifact_id for artifact in found(memory, ArtifactCreated)}) == 2
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_resumed_run_loads_the_large_output_of_a_step_by_its_hash(tmp_path: Path) -> None:
    source = Source(LARGE)
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session:
        leave(session)
        with session.resume_run("r") as run:
            run.step("collect", source.read)
            length = run.step("count", len, LARGE)
        first, second = found(memory, StepStarted)
        outputs = [json.loads(step.output_json or "") for step in found(memory, StepSucceeded)]
        assert outputs[0]["artifact_ref"].startswith("artifact:step_output:")
        assert outputs[1] == length == 1
        assert first.input_json == "{}"
        assert json.loads(second.input_json or "")["artifact_ref"].startswith("artifact:step_input:")
        with session.resume_run("r") as again:
            output: object = again.step("collect", source.read)
            assert output == LARGE
    assert source.calls == 1
    assert memory.rejections() == []


class ReadStore(FolderStore):
    """Remembers what was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names_read: list[str] = []

    def read(self, name: str) -> bytes:
        self.names_read.append(name)
        return super().read(name)


def test_a_resumed_run_reads_no_body_that_it_does_not_need(tmp_path: Path) -> None:
    store = ReadStore(tmp_path)
    client, memory = memory_client(artifacts=ArtifactLibrary(store))
    with client, client.session(user_id="u") as session:
        leave(session)
        with session.resume_run("r") as run:
            for number in range(3):
                run.step(f"step-{number}", Source([*LARGE["pages"], f"{number}"]).read)
            run._leave_metadata()
        before = list(store.names_read)
        with session.resume_run("r") as again:
            assert again.resume_plan().done == ("step-0", "step-1", "step-2")
            assert store.names_read == before
            last: object = again.step("step-2", Source(None).read)
            assert last == [*LARGE["pages"], "2"]
    assert len(store.names_read) == len(before) + 1
    assert memory.rejections() == []


def test_the_large_result_of_a_run_is_an_artifact(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session:
        with session.run("report", run_id="r") as run:
            run.result = LARGE
        (completed,), (created,) = found(memory, RunCompleted), found(memory, ArtifactCreated)
        assert completed.artifact_id == created.artifact_id
        with session.resume_run("r") as again:
            assert again.result == LARGE
            assert again.artifact_id == created.artifact_id


def test_the_library_works_for_asyncio(tmp_path: Path) -> None:
    source = Source(LARGE)

    @tool(name="read")
    async def read() -> Json:
        return source.read()

    async def work(client: AsyncSessionClient) -> Json:
        async with client, client.session(user_id="u") as session, session.run("report") as run:
            await read()
            return [await read(), await run.step("again", read)]

    client, memory = memory_client(artifacts=tmp_path)
    wrapped = AsyncSessionClient.wrap(client)
    assert wrapped.artifacts is client.artifacts
    assert asyncio.run(work(wrapped)) == [LARGE, LARGE]
    assert source.calls == 3  # each call has a key of its own
    assert len(found(memory, ArtifactCreated)) == 4


def test_the_answer_of_a_query_may_be_large(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    source = Source(KeyboardInterrupt())

    @tool(name="order", effect="write", query=lambda key: TookEffect(LARGE), deadline=1)
    def order() -> Json:
        source.read()
        raise KeyboardInterrupt

    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r")
        run.__enter__()
        with pytest.raises(KeyboardInterrupt):
            order()
        run._leave_metadata()
        memory.advance(2)
        with session.resume_run("r"):
            assert order() == LARGE
    assert source.calls == 1
    (resolved,) = found(memory, ToolCallResolved)
    assert json.loads(resolved.result_json or "")["artifact_ref"].startswith("artifact:tool_result:")


@pytest.mark.parametrize("key", [None, lambda document: "report-7"])
def test_large_arguments_are_an_artifact_and_the_key_is_made_of_all_of_them(
    tmp_path: Path, key: Callable[..., str] | None
) -> None:
    calls: list[Json] = []
    # The rest of the summary is the same: only their hashes tell these documents apart.
    first, second = ({"pages": [*LARGE["pages"], end]} for end in ("a", "b"))
    client, memory = memory_client(artifacts=tmp_path)
    send = tool(name="send", effect="write", key=key, once=True)(calls.append)
    with client, client.session(user_id="u") as session, session.run("report", run_id="r"):
        for document in (first, first, second):
            send(document)
    assert calls == ([first, second] if key is None else [first])
    started = found(memory, ToolCallStarted)
    references = [json.loads(each.args_json)["artifact_ref"] for each in started]
    assert all(len(each.args_json) < 1_000 for each in started)
    assert len(set(references)) == len(calls)
    assert references[0].startswith("artifact:tool_arguments:")
    assert client.artifacts is not None
    assert json.loads(client.artifacts.load(references[-1])) == {"object": calls[-1]}
    if key is None:
        assert started[0].idem_key == idempotency_key("acme", "r", None, "send", {"object": first})


def test_without_a_library_arguments_that_fit_into_no_event_are_refused_unless_there_is_a_key() -> None:
    calls: list[str] = []
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report"):
        with pytest.raises(Invalid, match=r"arguments of send has .* SESSIONARY_ARTIFACTS_URL"):
            tool(name="send", effect="write")(calls.append)(HUGE)
        assert calls == []
        tool(name="send", effect="write", key=lambda _: "k")(calls.append)(HUGE)
        tool(name="send", effect="write")(calls.append)("z" * (VALUE_BYTES_MAX + 1))
    assert [len(each) for each in calls] == [len(HUGE), VALUE_BYTES_MAX + 1]
    keyed, plain = [each.args_json for each in found(memory, ToolCallStarted)]
    assert "arguments of send" in json.loads(keyed)["summary"]
    assert len(plain) == VALUE_BYTES_MAX + 1 + 13


def test_large_arguments_of_a_call_that_is_tried_again_are_stored_once(tmp_path: Path) -> None:
    tries: list[str] = []

    @tool(name="read", effect="read", retry=Retry(retries=2, base_ms=1))
    def read(document: str) -> int:
        tries.append(document)
        if len(tries) < 3:
            raise ConnectionError("the service is away")
        return len(document)

    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report"):
        assert read(HUGE) == len(HUGE)
    assert len({each.args_json for each in found(memory, ToolCallStarted)}) == 1
    assert (len(found(memory, ToolCallStarted)), len(found(memory, ArtifactCreated))) == (3, 1)


def test_a_changed_body_is_noticed(tmp_path: Path) -> None:
    client, _ = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("collect", lambda: LARGE, key="all")
        (body,) = (path for path in tmp_path.rglob("*") if path.is_file())
        body.write_text("{}")
        with pytest.raises(ArtifactDamaged):
            run.step("collect", lambda: LARGE, key="all")


def test_without_a_library_events_hold_what_fits() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert run.step("collect", lambda: LARGE, key="all") == LARGE
        assert run.step("collect", lambda: None, key="all") == LARGE
    assert found(memory, ArtifactCreated) == []


def test_without_a_library_a_step_fails_with_advice_and_can_be_done_again(tmp_path: Path) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r")
        with pytest.raises(ResultTooLarge, match="SESSIONARY_ARTIFACTS_URL") as raised, run:
            run.step("collect", lambda: HUGE)
        assert raised.value.value == HUGE
        (failed,) = found(memory, StepFailed)
        assert failed.error.error_class == "retryable"
        other, _ = memory_client(memory=memory, artifacts=tmp_path)
        with other, other.attach(session.session_id).resume_run("r") as again:
            assert again.step("collect", lambda: HUGE) == HUGE


def test_without_a_library_an_effect_is_not_repeated_and_its_result_handed_over() -> None:
    source, errors = Source(HUGE), list[Exception]()
    send = tool(name="send", effect="write", once=True)(source.read)
    client, memory = memory_client(on_error=errors.append)
    with client, client.session(user_id="u") as session, session.run("report"):
        assert send() == HUGE
        with pytest.raises(Invalid, match="was not kept: the result of send has"):
            send()
    assert [type(error) for error in errors] == [ResultTooLarge]
    assert "SESSIONARY_ARTIFACTS_URL" in f"{errors[0]}"
    assert source.calls == 1
    assert len(found(memory, ToolCallSucceeded)) == 1


def test_without_a_library_a_call_without_effect_can_be_made_again() -> None:
    source = Source(HUGE)
    read = tool(name="read", effect="read")(source.read)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report"):
        with pytest.raises(ResultTooLarge):
            read()
        source.value = "short"
        assert read() == "short"
    (failed,) = found(memory, ToolCallFailed)
    assert (failed.error.error_class, failed.error.code) == ("retryable", "ResultTooLarge")


def test_a_stored_reference_without_a_library_says_what_to_set(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session:
        leave(session)
        with session.resume_run("r") as run:
            run.step("collect", lambda: LARGE)
        other, _ = memory_client(memory=memory)
        again = other.attach(session.session_id).resume_run("r")
        with other, pytest.raises(SettingsError, match="SESSIONARY_ARTIFACTS_URL"), again:
            again.step("collect", lambda: LARGE)


def test_a_store_that_takes_nothing_loses_nothing(tmp_path: Path) -> None:
    errors: list[Exception] = []
    library = ArtifactLibrary(BrokenStore(tmp_path))
    client, memory = memory_client(artifacts=library, on_error=errors.append)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert run.step("collect", lambda: LARGE) == LARGE
        with pytest.raises(ResultTooLarge, match="the disk is full"):
            run.step("write", lambda: HUGE)
    (succeeded,) = found(memory, StepSucceeded)
    assert json.loads(succeeded.output_json or "") == LARGE
    assert [type(error) for error in errors] == [Unavailable]


def test_a_reference_of_the_program_itself_stays_a_reference(tmp_path: Path) -> None:
    client, _ = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert client.artifacts is not None
        content = {"artifact_ref": f"{client.artifacts.save(session, 'text', 'markdown').reference}", "summary": "a"}
        run.step("collect", lambda: content, key="all")
        assert run.step("collect", lambda: None, key="all") == content


def test_the_library_is_at_the_address_of_the_setting(tmp_path: Path) -> None:
    settings = ProducerSettings.from_env({"SESSIONARY_ARTIFACTS_URL": tmp_path.as_uri()})
    client, memory = memory_client(settings=settings)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("collect", lambda: LARGE)
    (created,) = found(memory, ArtifactCreated)
    assert created.uri.startswith(f"{tmp_path.as_uri()}/sha256/")
