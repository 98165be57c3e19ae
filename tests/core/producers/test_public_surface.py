"""What a user of the client sees: its names, its types, and that both faces agree."""

import ast
import asyncio
import builtins
import importlib
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import sessionary.producers
from sessionary.producers import (
    Agent,
    ArtifactLibrary,
    AsyncAgent,
    AsyncOnMigrated,
    AsyncReplay,
    AsyncSession,
    AsyncSessionAgents,
    AsyncSessionClient,
    AsyncSessionConversation,
    AsyncSessionFollower,
    AsyncSessionLifecycle,
    AsyncSessionMigration,
    AsyncSessionRecords,
    AsyncStep,
    Backlog,
    Counters,
    Invalid,
    OnMigrated,
    ProducerSettings,
    Rejected,
    Replay,
    Session,
    SessionAgents,
    SessionClient,
    SessionConversation,
    SessionFollower,
    SessionLifecycle,
    SessionMigration,
    SessionRecords,
    SessionView,
    Step,
    Verdict,
)
from sessionary.producers import testing as testing_module
from sessionary.producers.replay.answers import ReplayMode, ReplayStub
from sessionary.producers.testing import InMemoryTransport, memory_client

SESSION = {
    *("session_id", "local_state", "epoch", "version", "state", "context_bytes", "lost"),
    *("emit", "access", "activity", "info", "progress", "usage", "update_state", "snapshot", "snapshot_id"),
    *("now", "random", "rollback", "transaction", "save_checkpoint", "load_checkpoint"),
    *("message", "turn", "llm", "decision", "run", "resume_run", "start_task", "metadata", "bind"),
    *("start", "pause", "ask", "resume", "error", "recover", "sync", "complete", "cancel", "close"),
    *("lifecycle", "conversation", "agents", "migration", "records"),
    "core",
}
# The groups of a session's verbs, in both faces.
GROUPS = {
    "lifecycle": (SessionLifecycle, AsyncSessionLifecycle),
    "conversation": (SessionConversation, AsyncSessionConversation),
    "agents": (SessionAgents, AsyncSessionAgents),
    "migration": (SessionMigration, AsyncSessionMigration),
    "records": (SessionRecords, AsyncSessionRecords),
}
GROUP_VERBS = {
    *("lifecycle.fail_start", "lifecycle.enter_phase", "lifecycle.force_close", "lifecycle.detach"),
    *("conversation.read", "conversation.add_result", "agents.get", "agents.list", "agents.handoff"),
    *("migration.move", "records.execution", "records.artifacts", "records.verify"),
}
CLIENT = {
    "core",
    *("producer_id", "counters", "backlog", "may_block", "delivery_policy", "artifacts"),
    *("create", "session", "open", "attach", "on_cleanup", "flush", "close", "for_tenant", "traced"),
    *("check_task_status", "get_task_results", "get_intermediate_results", "find_task", "watch_task"),
    *("list_tasks", "cancel_task"),
    *("conversation", "follow", "accept_migrations", "claim", "replay"),
}
FACES = [(Session, AsyncSession), (SessionClient, AsyncSessionClient), (Agent, AsyncAgent), *GROUPS.values()]
# What the name of a type is in the other face.
COUNTERPARTS: dict[object, object] = {
    Agent: AsyncAgent,
    OnMigrated: AsyncOnMigrated,
    Replay: AsyncReplay,
    Callable[[Replay], object]: Callable[[AsyncReplay], Awaitable[object]],
    Session: AsyncSession,
    SessionClient: AsyncSessionClient,
    SessionFollower: AsyncSessionFollower,
    Step: AsyncStep,
    **dict(iter(GROUPS.values())),
}
# These send nothing and wait for nothing, so they are plain functions in both.
PLAIN = {
    "detach",
    "on_cleanup",
    "accept_migrations",
    "session",
    "turn",
    "transaction",
    "open",
    "llm",
    "run",
    "resume_run",
    "metadata",
    "bind",
    "for_tenant",
    "traced",
    "follow",
    "now",  # sends an activity at most, without a wait
    "random",
    "replay",
}


def public_names(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_a_session_and_a_client_offer_what_is_documented_and_nothing_else() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        assert public_names(session) == SESSION
        assert {f"{group}.{name}" for group, (face, _) in GROUPS.items() for name in public_names(face)} == {
            *GROUP_VERBS,
            *(f"{group}.core" for group in GROUPS),
        }
        assert public_names(client) == CLIENT


def test_the_asyncio_face_offers_the_same_and_the_way_to_the_other() -> None:
    async def main() -> None:
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client, client.session(user_id="u") as session:
            assert public_names(session) == SESSION | {"sync_session"}
            assert public_names(client) == CLIENT | {"sync_client", "wrap"}

    asyncio.run(main())


def in_other_face(annotation: Any) -> Any:
    """Replace each type by its counterpart in the asyncio face."""
    if annotation in COUNTERPARTS:
        return COUNTERPARTS[annotation]
    if isinstance(annotation, types.UnionType) and not {Session, AsyncSession} <= set(typing.get_args(annotation)):
        parts = [in_other_face(part) for part in typing.get_args(annotation)]
        return typing.Union[tuple(parts)]  # noqa: UP007 - made of a list
    return annotation


# The names in annotations whose modules the client for threads does not load.
_LOADED_AT_USE = {
    "AsyncAgent": AsyncAgent,
    "ArtifactLibrary": ArtifactLibrary,
    "AsyncReplay": AsyncReplay,
    "Replay": Replay,
    "ReplayMode": ReplayMode,
    "ReplayStub": ReplayStub,
    "AsyncSession": AsyncSession,
    "ProducerSettings": ProducerSettings,
}


def same(one: Any, other: Any) -> bool:
    """Whether two annotations are equal, however a union was made."""
    return one == other or (
        isinstance(one, types.UnionType) and set(typing.get_args(one)) == set(typing.get_args(other))
    )


def differences(sync: Callable[..., Any], other: Callable[..., Any], *, awaitable: bool) -> list[str]:
    """Return how the signature of the asyncio face differs from that of the other."""
    if inspect.iscoroutinefunction(other) != awaitable:
        return [f"{sync.__name__} must{'' if awaitable else ' not'} be a coroutine function"]
    expected, found = (inspect.signature(each, eval_str=True, locals=_LOADED_AT_USE) for each in (sync, other))
    if list(expected.parameters) != list(found.parameters):
        return [f"{sync.__name__}: {list(expected.parameters)} and {list(found.parameters)}"]
    wrong = [
        f"{sync.__name__}({name})"
        for name, parameter in expected.parameters.items()
        if (parameter.kind, parameter.default) != (found.parameters[name].kind, found.parameters[name].default)
        or not same(in_other_face(parameter.annotation), found.parameters[name].annotation)
    ]
    if not same(in_other_face(expected.return_annotation), found.return_annotation):
        wrong.append(f"{sync.__name__} -> {found.return_annotation}")
    return wrong


def face_differences(sync: type, other: type) -> list[str]:
    found = differences(getattr(sync, "__init__"), other.__init__, awaitable=False) if sync is SessionClient else []  # type: ignore[misc]  # noqa: B009
    for name in sorted(public_names(sync) - {"core"}):
        one, two = inspect.getattr_static(sync, name), inspect.getattr_static(other, name, None)
        if isinstance(one, property):
            if not isinstance(two, property) or (one.fset is None) != (two.fset is None):
                found.append(f"{name} is no such property")
            elif one.fget is not None and two.fget is not None:
                found += differences(one.fget, two.fget, awaitable=False)
        elif two is None:
            found.append(f"{name} is missing")
        else:
            found += differences(one, two, awaitable=name not in PLAIN)
    if sync is SessionClient:  # an iterator is an asynchronous iterator in the other face
        return [text for text in found if not text.startswith(("watch_task ", "list_tasks "))]
    return found


@pytest.mark.parametrize(("sync", "other"), FACES)
def test_both_faces_have_the_same_verbs_with_the_same_signatures(sync: type, other: type) -> None:
    assert face_differences(sync, other) == []


def test_the_comparison_of_faces_can_fail() -> None:
    class Less:
        async def wait(self, timeout_s: float = 1.0) -> Session: ...  # type: ignore[empty-body]

    class More:
        @property
        def name(self) -> str: ...  # type: ignore[empty-body]

        def wait(self, timeout_s: float = 2.0) -> Session: ...  # type: ignore[empty-body]

    assert face_differences(More, Less) == ["name is no such property", "wait(timeout_s)", "wait -> " + str(Session)]
    assert face_differences(More, object) == ["name is no such property", "wait is missing"]


def annotated_names(owner: type) -> Iterator[str]:
    """Yield the names in the annotations of a class's public methods and fields, as written."""
    for base in owner.__mro__:
        if not base.__module__.startswith("sessionary.producers."):
            continue
        tree = ast.parse(inspect.getsource(importlib.import_module(base.__module__)))
        body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__).body
        for node in body:
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith(("_", "core")):
                yield from names_in(node.annotation)
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name != "core"
                and (not node.name.startswith("_") or (node.name == "__init__" and owner in (SessionClient, Rejected)))
            ):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                for annotation in (*(argument.annotation for argument in arguments), node.returns):
                    yield from names_in(annotation)


def names_in(annotation: ast.expr | None) -> Iterator[str]:
    if annotation is not None:
        yield from (node.id for node in ast.walk(annotation) if isinstance(node, ast.Name))


STANDARD = {*vars(typing), *dir(builtins)} | {
    *(
        "Mapping",
        "Sequence",
        "datetime",
        "timedelta",
        "Path",
        "SecretStr",
        "BeforeValidator",
        "AbstractContextManager",
        "Iterator",
        "AsyncIterator",
    ),
    *("F", "P", "T"),  # type variables
}


@pytest.mark.parametrize(
    "owner",
    [
        *(each for faces in FACES for each in faces),
        SessionView,
        Verdict,
        Backlog,
        Counters,
        Rejected,
    ],
)
def test_a_user_can_name_every_type_of_a_signature(owner: type) -> None:
    named = set(annotated_names(owner))
    assert named
    assert named - STANDARD <= set(sessionary.producers.__all__)


def test_a_user_can_name_every_type_of_the_settings_and_the_in_memory_client() -> None:
    offered = {*sessionary.producers.__all__, *testing_module.__all__}
    # Only of the protocols that the memory implements.
    private = {"OnReceipt", "OnCleanupRequest", "KnownSession", "SessionChanges", "TaskQuestion"}
    for owner in (ProducerSettings, InMemoryTransport):
        assert set(annotated_names(owner)) - STANDARD - private <= offered


@pytest.mark.parametrize("owner", [each for faces in FACES for each in faces])
def test_every_public_docstring_stands_alone(owner: type) -> None:
    for name in sorted(public_names(owner) - {"core"}):
        text = inspect.getdoc(inspect.getattr_static(owner, name)) or ""
        assert len(text) > 15, name
        first_word = text.split()[0]
        assert first_word not in ("See", "As"), name
        assert not [word for word in text.split() if word[:1] in "ST" and word[1:3].isdigit()], name


def test_wrong_arguments_are_rejected_by_types_and_at_run_time() -> None:
    """Strict mypy reports an ignore that is not needed, so each ignored error below is proven."""

    async def main() -> None:
        with pytest.raises(TypeError, match="wrong"):
            AsyncSessionClient(tenant_id="t", service_id="s", agent_id="a", wrong=3)  # type: ignore[call-arg]
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client, client.session(user_id="u") as session:
            with pytest.raises(TypeError, match="tokens"):
                await session.usage(tokens="many")  # type: ignore[call-arg]
            await session.usage(tokens_in="many")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="run"):
                await session.emit(session, run="r")  # type: ignore[arg-type, call-arg]
            with pytest.raises(Invalid):
                await session.emit("text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="wrong"):
                await client.create(user_id="u", wrong=3)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="parent_id"):
                client.session(user_id="u", parent_id="x")  # type: ignore[call-arg]
            with pytest.raises(Invalid):
                await session.pause(kind="nap")  # type: ignore[arg-type]

    asyncio.run(main())
