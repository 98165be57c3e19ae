"""The envelope's marks: on every verb, of a block, and of the current span."""

import asyncio
import subprocess
import sys
import timeit
from collections.abc import Callable
from functools import partial

import pytest
from opentelemetry import context as otel_context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from sessionary.producers import AsyncSessionClient, Marks, ProducerSettings, Session, SessionClient
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.headers import TRACEPARENT

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MARKS: Marks = {
    "run_id": "run",
    "run_seq": 7,
    "step_id": "step",
    "causation_id": "cause",
    "actor": "boss",
    "traceparent": TRACE,
}


def recover_after_error(session: Session) -> None:
    session.error(TimeoutError(), **MARKS)
    session.recover(**MARKS)


VERBS: dict[str, Callable[[Session], object]] = {
    "emit": lambda s: s.emit(LlmDecision(), **MARKS),
    "activity": lambda s: s.activity("x", **MARKS),
    "info": lambda s: s.info("x", **MARKS),
    "progress": lambda s: s.progress(1, **MARKS),
    "usage": lambda s: s.usage(model="m", **MARKS),
    "update_state": lambda s: s.update_state({"n": 1}, **MARKS),
    "snapshot": lambda s: s.snapshot(**MARKS),
    "enter_phase": lambda s: s.enter_phase("updating", **MARKS),
    "pause": lambda s: s.pause(**MARKS),
    "resume": lambda s: (s.pause(**MARKS), s.resume(**MARKS)),
    "error": lambda s: s.error(TimeoutError(), **MARKS),
    "recover": recover_after_error,
    "complete": lambda s: s.complete(**MARKS),
    "cancel": lambda s: s.cancel(**MARKS),
    "force_close": lambda s: s.force_close(**MARKS),
    "close": lambda s: s.close(**MARKS),
}


def marks_of(memory: InMemoryTransport, begin: int) -> list[tuple[object, ...]]:
    """Return run, number, step, cause, actor and trace of each event from the number `begin` on."""
    envelopes = [event.envelope for event in memory.events()]
    traces = [dict(record.headers).get(TRACEPARENT, b"").decode() or None for record in memory.records()]
    return [
        (e.run_id, e.run_seq, e.step_id, e.causation_id, e.actor, trace)
        for e, trace in zip(envelopes[begin:], traces[begin:], strict=True)
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_marks_all_its_events(verb: str) -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        begin = len(memory.events())
        VERBS[verb](session)
        found = marks_of(memory, begin)
    assert found
    assert set(found) == {tuple(MARKS.values())}


def test_the_verbs_of_a_start_mark_all_their_events() -> None:
    client, memory = memory_client()
    with client:
        client.create(user_id="u").start(connect=lambda: None, **MARKS)
        assert set(marks_of(memory, 1)) == {tuple(MARKS.values())}
        begin = len(memory.events()) + 1
        client.create(user_id="u").fail_start("invalid_config", **MARKS)
        assert set(marks_of(memory, begin)) == {tuple(MARKS.values())}


def test_making_a_session_marks_all_its_events() -> None:
    client, memory = memory_client()
    with client:
        client.create(user_id="u", **MARKS)
        assert marks_of(memory, 0) == [tuple(MARKS.values())]
        client.session(user_id="u", connect=lambda: None, **MARKS)
        assert len(memory.events()) == 5
        assert set(marks_of(memory, 0)) == {tuple(MARKS.values())}


def test_making_a_session_for_asyncio_marks_all_its_events() -> None:
    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client:
            await client.create(user_id="u", **MARKS)
            async with client.session(user_id="u", **MARKS) as session:
                assert set(marks_of(memory, 0)) == {tuple(MARKS.values())}
                await session.info("without")
            assert marks_of(memory, 5)[0] == (None,) * 6
        return memory

    assert len(asyncio.run(main()).events()) == 7


def attach_in_loop(client: SessionClient, session_id: str, *, take_over: bool) -> None:
    async def attach() -> None:
        await AsyncSessionClient.wrap(client).attach(session_id, take_over=take_over, **MARKS)

    asyncio.run(attach())


@pytest.mark.parametrize("attach", [partial(SessionClient.attach, **MARKS), attach_in_loop])
def test_a_take_over_is_marked_and_attaching_sends_nothing(attach: Callable[..., object]) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, rules=2))
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        attach(client, session.session_id, take_over=False)
        assert marks_of(memory, begin) == []
        attach(client, session.session_id, take_over=True)
        assert marks_of(memory, begin) == [tuple(MARKS.values())]


def test_an_unknown_mark_asks_for_no_session() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        other = AsyncSessionClient.wrap(client)
        with pytest.raises(TypeError, match="wrong"):
            client.attach(session.session_id, wrong=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="wrong"):
            asyncio.run(other.attach(session.session_id, wrong=1))  # type: ignore[call-arg]


def test_an_unknown_mark_leaves_nothing_of_a_session() -> None:
    client, memory = memory_client()
    with client:
        for make in (client.create, client.session, AsyncSessionClient.wrap(client).session):
            with pytest.raises(TypeError, match="wrong"):
                make(user_id="u", wrong=1)  # type: ignore[call-arg]
        assert (memory.events(), client._sequences._sequences) == ([], {})


def test_an_unknown_mark_is_an_error_before_anything_is_sent() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        with pytest.raises(TypeError, match="wrong"):
            session.activity("x", wrong=1)  # type: ignore[call-arg]
        assert len(memory.events()) == begin


def test_events_of_a_block_carry_its_marks_unless_they_have_others() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, client.session(user_id="u") as other:
        begin = len(memory.events())
        with session.marks(run_id="run", actor="boss"):
            session.info("1")
            with session.marks(step_id="step", actor="chief"):
                session.info("2", run_id="other")
            other.info("3")
            session.pause()
        other.emit(LlmDecision())
        found = [(run, step, actor) for run, _, step, _, actor, _ in marks_of(memory, begin)]
    assert found[:4] == [("run", None, "boss"), ("other", "step", "chief"), (None, None, None), ("run", None, "boss")]
    assert found[4] == (None, None, None)


def test_tasks_have_marks_of_their_own() -> None:
    async def main() -> list[tuple[object, object]]:
        sync_client, memory = memory_client()
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u") as session:
            begin = len(memory.events())

            async def work(run: str) -> None:
                with session.marks(run_id=run):
                    await asyncio.sleep(0)
                    await session.info(run)

            await asyncio.gather(work("a"), work("b"))
            return [
                (event.envelope.run_id, text)
                for event in memory.events()[begin:]
                if (text := getattr(event.payload, "text", None))
            ]

    assert asyncio.run(main()) == [("a", "a"), ("b", "b")]


def test_the_current_span_is_the_trace_context_of_every_event() -> None:
    client, memory = memory_client()
    span = NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1)))
    expected = f"00-{0xA:032x}-{0xB:016x}-01"
    with client, client.session(user_id="u") as session:
        begin = len(memory.events())
        token = otel_context.attach(set_span_in_context(span))
        try:
            session.info("1")
            session.info("2", traceparent=TRACE)
        finally:
            otel_context.detach(token)
        session.info("3")
        assert [marks[-1] for marks in marks_of(memory, begin)] == [expected, TRACE, None]


_COST = """
import sys, timeit
from sessionary.producers.context.traceparent import current_traceparent
assert current_traceparent() is None
print(min(timeit.repeat(current_traceparent, number=20_000, repeat=9)) / 20_000)
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""


def test_without_opentelemetry_a_look_up_costs_nothing_and_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _COST], capture_output=True, text=True, check=True, timeout=60)
    # Compared with a dict's look-up on the same machine: 1 µs is more than ten of these.
    look_up_s = min(timeit.repeat("names.get('x')", "names = {}", number=20_000, repeat=9)) / 20_000
    assert float(done.stdout) < max(1e-6, 10 * look_up_s)
