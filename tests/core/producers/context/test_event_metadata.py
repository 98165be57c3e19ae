"""The envelope's metadata: on every verb, of a block, and of the current span."""

import asyncio
import inspect
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack, cast

import pytest
from opentelemetry import context as otel_context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    EventMetadata,
    MigrationAborted,
    Session,
    SessionClient,
)
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.headers import TRACEPARENT
from tests.core.producers.test_public_surface import GROUPS

SPAN = NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1)))
SPAN_TRACE = f"00-{0xA:032x}-{0xB:016x}-01"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
METADATA: EventMetadata = {
    "run_id": "run",
    "run_seq": 7,
    "step_id": "step",
    "causation_id": "cause",
    "actor": "boss",
    "traceparent": TRACE,
}


def resume_failed_run(session: Session, metadata: EventMetadata) -> None:
    with suppress(TimeoutError), session.run("report", **cast(EventMetadata, {"run_id": "run", **metadata})):
        raise TimeoutError
    with session.resume_run("run", **metadata):
        pass


def recover_after_error(session: Session, metadata: EventMetadata) -> None:
    session.error(TimeoutError(), **metadata)
    session.recover(**metadata)


def migrate(session: Session, metadata: EventMetadata) -> None:
    with suppress(MigrationAborted):
        session.migration.move(to="elsewhere", ttl_s=1, **metadata)


def take_turn(session: Session, metadata: EventMetadata) -> None:
    with session.turn(**metadata):
        pass


def call_model(session: Session, metadata: EventMetadata) -> None:
    with session.llm("large", **metadata):
        pass


def run_task(session: Session, metadata: EventMetadata) -> None:
    with session.run("report", **metadata):
        pass


def register_agent(session: Session, metadata: EventMetadata) -> None:
    with session.run("report", **metadata):  # these verbs wait, and are rejected if their run is unknown
        session.agents.get("a", "writer", **metadata)


def hand_over(session: Session, metadata: EventMetadata) -> None:
    with session.run("report", **metadata):
        for agent_id in ("a", "b"):
            session.agents.get(agent_id, "writer", **metadata).finish("x" * 20_000, task="work", **metadata)
        session.agents.handoff(to="b", from_agent="a", **metadata)


def roll_back(session: Session, metadata: EventMetadata) -> None:
    session.rollback(session.snapshot(**metadata), **metadata)


def commit_nothing(session: Session, metadata: EventMetadata) -> None:
    with session.transaction(**metadata):
        pass


# What each verb that takes metadata does in an Active session; the last two in an Idle one.
VERBS: dict[str, Callable[[Session, EventMetadata], object]] = {
    "emit": lambda s, m: s.emit(LlmDecision(chosen_tools=("search",)), **m),
    "activity": lambda s, m: s.activity("x", **m),
    "access": lambda s, m: s.access("file:///x", **m),
    "info": lambda s, m: s.info("x", **m),
    "progress": lambda s, m: s.progress(1, **m),
    "usage": lambda s, m: s.usage(model="m", **m),
    "decision": lambda s, m: s.decision(tools=["search"], **m),
    "update_state": lambda s, m: s.update_state({"n": 1}, **m),
    "snapshot": lambda s, m: s.snapshot(**m),
    "rollback": roll_back,
    "transaction": commit_nothing,
    "save_checkpoint": lambda s, m: s.save_checkpoint("import", {"n": 1}, **m),
    "message": lambda s, m: s.message("user", "x" * 20_000, **m),
    "agents.get": register_agent,
    "agents.handoff": hand_over,
    "conversation.add_result": lambda s, m: s.conversation.add_result("search", ["x"], **m),
    "turn": take_turn,
    "llm": call_model,
    "run": run_task,
    "resume_run": resume_failed_run,
    "start_task": lambda s, m: s.start_task("train", **m),
    "lifecycle.enter_phase": lambda s, m: s.lifecycle.enter_phase("updating", **m),
    "pause": lambda s, m: s.pause(**m),
    "ask": lambda s, m: s.ask("may I?", deadline=1, **m),
    "resume": lambda s, m: (s.pause(**m), s.resume(**m)),
    "migration.move": migrate,
    "error": lambda s, m: s.error(TimeoutError(), **m),
    "recover": recover_after_error,
    "complete": lambda s, m: s.complete(**m),
    "cancel": lambda s, m: s.cancel(**m),
    "lifecycle.force_close": lambda s, m: s.lifecycle.force_close(**m),
    "close": lambda s, m: s.close(**m),
    "start": lambda s, m: s.start(connect=lambda: None, **m),
    "lifecycle.fail_start": lambda s, m: s.lifecycle.fail_start("invalid_config", **m),
}
IDLE = {"start", "lifecycle.fail_start"}
# What a verb says itself: the task that it asks for; that the call's start caused its end.
OWN_METADATA = {"start_task": "run_id", "llm": "causation_id"}


def marked_verbs(owner: type) -> set[str]:
    """Return the methods that take metadata, by their signatures."""
    return {
        name
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
        and any(each.annotation == Unpack[EventMetadata] for each in inspect.signature(method).parameters.values())
    }


def test_each_verb_that_takes_metadata_is_among_these() -> None:
    for face, flat in enumerate((Session, AsyncSession)):
        grouped = {f"{group}.{name}" for group, faces in GROUPS.items() for name in marked_verbs(faces[face])}
        assert marked_verbs(flat) | grouped == VERBS.keys()
    assert (
        marked_verbs(SessionClient)
        == marked_verbs(AsyncSessionClient)
        == {"create", "session", "open", "attach", "claim"}
    )


def use_verb(client: SessionClient, verb: str, metadata: EventMetadata) -> None:
    session = client.create(user_id="u")
    VERBS[verb](session if verb in IDLE else session.start(), metadata)


def events_before(verb: str) -> int:
    return 1 if verb in IDLE else 4


def metadata_of(memory: InMemoryTransport, begin: int) -> list[tuple[object, ...]]:
    """Return run, number, step, cause, actor and trace of each event from the number `begin` on."""
    envelopes = [event.envelope for event in memory.events()]
    traces = [dict(record.headers).get(TRACEPARENT, b"").decode() or None for record in memory.records()]
    return [
        (e.run_id, e.run_seq, e.step_id, e.causation_id, e.actor, trace)
        for e, trace in zip(envelopes[begin:], traces[begin:], strict=True)
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_gives_all_its_events_metadata(verb: str, tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client:
        use_verb(client, verb, METADATA)
        found = metadata_of(memory, events_before(verb))
    assert found
    own = [name == OWN_METADATA.get(verb) for name in METADATA]
    expected = tuple(None if is_own else value for value, is_own in zip(METADATA.values(), own, strict=True))
    without_own = {tuple(None if is_own else value for value, is_own in zip(m, own, strict=True)) for m in found}
    assert without_own == {expected}
    assert all(value is not None for m in found for value in m)


@pytest.mark.parametrize("verb", VERBS)
def test_the_current_span_is_the_trace_context_of_every_event_of_every_verb(verb: str, tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client:
        token = otel_context.attach(set_span_in_context(SPAN))
        try:
            use_verb(client, verb, {})
        finally:
            otel_context.detach(token)
        found = metadata_of(memory, 0)
    assert len(found) > events_before(verb)
    assert {metadata[-1] for metadata in found} == {SPAN_TRACE}


def test_making_a_session_gives_all_its_events_metadata() -> None:
    client, memory = memory_client()
    with client:
        client.create(user_id="u", **METADATA)
        assert metadata_of(memory, 0) == [tuple(METADATA.values())]
        client.session(user_id="u", connect=lambda: None, **METADATA)
        assert len(memory.events()) == 5
        assert set(metadata_of(memory, 0)) == {tuple(METADATA.values())}


def test_making_a_session_for_asyncio_gives_all_its_events_metadata() -> None:
    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client:
            await client.create(user_id="u", **METADATA)
            async with client.session(user_id="u", **METADATA) as session:
                assert set(metadata_of(memory, 0)) == {tuple(METADATA.values())}
                await session.info("without")
            assert metadata_of(memory, 5)[0] == (None,) * 6
        return memory

    assert len(asyncio.run(main()).events()) == 7


def attach_in_loop(client: SessionClient, session_id: str, *, take_over: bool) -> None:
    async def attach() -> None:
        await AsyncSessionClient.wrap(client).attach(session_id, take_over=take_over, **METADATA)

    asyncio.run(attach())


@pytest.mark.parametrize("attach", [partial(SessionClient.attach, **METADATA), attach_in_loop])
def test_a_take_over_is_marked_and_attaching_sends_nothing(attach: Callable[..., object]) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        attach(client, session.session_id, take_over=False)
        assert metadata_of(memory, begin) == []
        attach(client, session.session_id, take_over=True)
        assert metadata_of(memory, begin) == [tuple(METADATA.values())]


def test_an_unknown_field_of_metadata_asks_for_no_session() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        other = AsyncSessionClient.wrap(client)
        with pytest.raises(TypeError, match="wrong"):
            client.attach(session.session_id, wrong=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="wrong"):
            asyncio.run(other.attach(session.session_id, wrong=1))  # type: ignore[call-arg]


def test_an_unknown_field_of_metadata_leaves_nothing_of_a_session() -> None:
    client, memory = memory_client()
    with client:
        for make in (client.create, client.session, AsyncSessionClient.wrap(client).session):
            with pytest.raises(TypeError, match="wrong"):
                make(user_id="u", wrong=1)  # type: ignore[call-arg]
        assert (memory.events(), client.core.sequences._sequences) == ([], {})


def test_an_unknown_field_of_metadata_is_an_error_before_anything_is_sent() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        with pytest.raises(TypeError, match="wrong"):
            session.activity("x", wrong=1)  # type: ignore[call-arg]
        assert len(memory.events()) == begin


def test_events_of_a_block_carry_its_metadata_unless_they_have_others() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, client.session(user_id="u") as other:
        begin = len(memory.events())
        with session.metadata(run_id="run", actor="boss"):
            session.info("1")
            with session.metadata(step_id="step", actor="chief"):
                session.info("2", run_id="other")
            other.info("3")
            session.pause()
        other.emit(LlmDecision(chosen_tools=("search",)))
        found = [(run, step, actor) for run, _, step, _, actor, _ in metadata_of(memory, begin)]
    assert found[:4] == [("run", None, "boss"), ("other", "step", "chief"), (None, None, None), ("run", None, "boss")]
    assert found[4] == (None, None, None)


def test_tasks_have_metadata_of_their_own() -> None:
    async def main() -> list[tuple[object, object]]:
        sync_client, memory = memory_client()
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u") as session:
            begin = len(memory.events())

            async def work(run: str) -> None:
                with session.metadata(run_id=run):
                    await asyncio.sleep(0)
                    await session.info(run)

            await asyncio.gather(work("a"), work("b"))
            return [
                (event.envelope.run_id, text)
                for event in memory.events()[begin:]
                if (text := getattr(event.payload, "text", None))
            ]

    assert asyncio.run(main()) == [("a", "a"), ("b", "b")]


def test_a_trace_context_that_is_given_goes_before_the_current_span() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        token = otel_context.attach(set_span_in_context(SPAN))
        try:
            session.info("1")
            session.info("2", traceparent=TRACE)
        finally:
            otel_context.detach(token)
        session.info("3")
        assert [metadata[-1] for metadata in metadata_of(memory, begin)] == [SPAN_TRACE, TRACE, None]


def test_what_a_run_reports_has_the_metadata_of_the_run_and_of_the_block_around_it() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        with session.metadata(actor="ada", traceparent=TRACE), session.run("report", run_id="run") as run:
            run.record_plan(["collect"])
            run.report_progress(0.5)
            run.checkpoint(None, "collect")
            run.step("collect", lambda: 1)
            list(run.items(["a"]))
        assert {(metadata[0], *metadata[4:]) for metadata in metadata_of(memory, begin)} == {("run", "ada", TRACE)}
    assert memory.rejections() == []


_COST = """
import sys, time, timeit
from sessionary.producers.context.scope import current_traceparent
assert current_traceparent() is None
print(min(timeit.repeat(current_traceparent, timer=time.thread_time, number=20_000, repeat=9)) / 20_000)
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""


def test_without_opentelemetry_a_look_up_costs_nothing_and_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _COST], capture_output=True, text=True, check=True, timeout=300)
    # Compared with a dict's look-up on the same machine: 1 µs is more than ten of these.
    timed = timeit.repeat("names.get('x')", "names = {}", timer=time.thread_time, number=20_000, repeat=9)
    look_up_s = min(timed) / 20_000
    assert float(done.stdout) < max(1e-6, 10 * look_up_s)
