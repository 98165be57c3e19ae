"""What public objects say of themselves, and what a slip of a caller is answered."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import sessionary.producers
from sessionary.producers import AsyncSession, AsyncSessionClient, Invalid, Session
from sessionary.producers import tasks as tasks_module
from sessionary.producers import testing as testing_module
from sessionary.producers.testing import memory_client

MODULES = (sessionary.producers, testing_module, tasks_module)


def _public_classes() -> list[type]:
    found = (getattr(module, name) for module in MODULES for name in module.__all__)
    return [each for each in found if inspect.isclass(each) and each.__module__.startswith("sessionary.")]


@pytest.mark.parametrize("public", _public_classes(), ids=lambda public: public.__name__)
def test_every_public_class_has_a_text_of_its_own(public: type) -> None:
    is_protocol = getattr(public, "_is_protocol", False)
    assert is_protocol or any("__repr__" in vars(each) for each in public.__mro__[:-1])


def test_the_texts_name_what_an_object_is_of(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="someone@example.org") as session, session.run("report", run_id="r1") as run:
        sid = session.session_id
        with session.llm("large") as call:
            call.tokens_in, call.tokens_out = 7, 3
        agent = session.agents.get("a1", "writer")
        assert [f"{each!r}" for each in (client, session, session.agents, run, call, agent)] == [
            f"<SessionClient acme/service/agent, producer_id={client.producer_id}>",
            f"<Session {sid} Active, epoch=1, version=1>",
            f"<SessionAgents of session {sid}>",
            "<Run r1 of report>",
            "<ModelCall large, tokens_in=7, tokens_out=3>",
            "<Agent a1, role=writer, service_id=service>",
        ]
        assert f"{client.artifacts!r}" == "<ArtifactLibrary in FolderStore>"
        assert f"{client.follow(session)!r}" == f"<SessionFollower of session {sid}>"
        assert f"{memory!r}" == f"<InMemoryTransport, {len(memory.events())} events>"
        assert f"{memory.operator!r}" == "<OperatorHand operator>"
    assert f"{session!r}" == f"<Session {sid} Terminated, epoch=1, version=1>"


def test_the_asyncio_objects_have_the_same_texts() -> None:
    async def look() -> None:
        inner, _ = memory_client()
        client = AsyncSessionClient.wrap(inner)
        assert f"{client!r}" == f"<AsyncSessionClient acme/service/agent, producer_id={inner.producer_id}>"
        session = client.session(user_id="u")
        assert f"{session!r}" == "<AsyncSession, not open yet>"
        async with session:
            sid = session.session_id
            assert f"{session!r}" == f"<AsyncSession {sid} Active, epoch=1, version=1>"
            assert f"{session.records!r}" == f"<AsyncSessionRecords of session {sid}>"
            assert f"{client.follow(session)!r}" == f"<AsyncSessionFollower of session {sid}>"

    asyncio.run(look())


@pytest.mark.parametrize("name", ["tenant_id", "service_id", "agent_id"])
def test_a_name_that_is_not_set_is_told_with_the_remedy(name: str) -> None:
    given = {"tenant_id": "acme", "service_id": "s", "agent_id": "a", name: None}
    with pytest.raises(Invalid, match=r"is None, not a text: .* environment variable"):
        memory_client(**given)  # type: ignore[arg-type]


WRONG: dict[str, Callable[[Session], object]] = {
    "progress is 150 of 1.0": lambda session: session.progress(150, 1.0),
    "progress is 1 of 0": lambda session: session.progress(1, total=0),
    "progress is 0 of 0": lambda session: session.progress(0, 0),
    "progress is -1 of None": lambda session: session.progress(-1),
    "progress is nan of None": lambda session: session.progress(float("nan")),
    "progress is 1 of inf": lambda session: session.progress(1, float("inf")),
    "progress is 'half' of None": lambda session: session.progress("half"),  # type: ignore[arg-type]
    "progress is 1 of '2'": lambda session: session.progress(1, "2"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_progress_beyond_its_total_is_an_error_that_names_both(what: str) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        sent = len(memory.events())
        with pytest.raises(Invalid, match=f"{what}: it must be a number from 0 to the total") as raised:
            WRONG[what](session)
        assert "total is above 0" in str(raised.value)
        assert len(memory.events()) == sent
        session.progress(3, 4)
        session.progress(150)


def test_progress_of_a_run_is_checked_alike() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        with pytest.raises(Invalid, match=r"progress is 150 of 1\.0: it must be"):
            run.report_progress(150)
        with pytest.raises(Invalid, match="progress is 1 of 0: it must be"):
            run.report_progress(1, 0)
        run.report_progress(1, 2)


def test_an_asyncio_session_checks_progress_too() -> None:
    async def work(session: AsyncSession) -> None:
        with pytest.raises(Invalid, match=r"progress is 150 of 1\.0"):
            await session.progress(150, 1.0)

    async def main() -> None:
        async with AsyncSessionClient.wrap(memory_client()[0]).session(user_id="u") as session:
            await work(session)

    asyncio.run(main())


UNKNOWN: dict[str, Callable[[Session], object]] = {
    "a verb": lambda session: session.info("read", foo=5),  # type: ignore[call-arg]
    "a verb's own argument, misspelt": lambda session: session.message("user", "hi", nam="foo"),  # type: ignore[call-arg]
    "a block": lambda session: session.metadata(foo=5),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("where", UNKNOWN)
def test_an_unknown_argument_is_named_with_those_that_exist(where: str) -> None:
    client, _ = memory_client()
    expected = pytest.raises(TypeError, match=r"no verb has the argument (foo|nam); the metadata .* are run_id, ")
    with client, client.session(user_id="u") as session, expected:
        UNKNOWN[where](session)
