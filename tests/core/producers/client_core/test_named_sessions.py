"""Sessions whose id the caller gives: who creates one, who attaches, where an id leads later."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    ClientClosed,
    Invalid,
    Limits,
    Rejected,
    Session,
    SessionClient,
    SessionEnded,
    SessionExists,
    SettingsError,
    Unavailable,
)
from sessionary.producers.client_core import opening
from sessionary.producers.ports import KnownSession, SessionChanges
from sessionary.producers.session.lifecycle import Lifecycle
from sessionary.producers.settings import ProducerSettings
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionCreated
from sessionary.schemas.ids import given_session_id, new_session_id, successor_id

ARCHIVED_S = 400  # after an end without an answer to the clean-up request
CANONICAL = "0b6e4f5a-93c1-4d8e-a7b2-5f0c9d1e2a3b"
FORMS: Sequence[str | uuid.UUID] = (
    CANONICAL,
    CANONICAL.upper(),
    CANONICAL.replace("-", ""),
    f"urn:uuid:{CANONICAL}",
    uuid.UUID(CANONICAL),
)
FAULTY = ("", " ", "x" * 257, "thread\n42", "\ud800", None, 42)


def other_client(
    memory: InMemoryTransport, *, tenant_id: str = "acme", service_id: str = "service", agent_id: str = "pod-2"
) -> SessionClient:
    """Return a client of another process."""
    return memory_client(tenant_id, service_id, agent_id, memory=memory)[0]


def events_of(memory: InMemoryTransport, session: Session | str) -> list[str]:
    """Return the types of the events that were applied in a session."""
    session_id = session if isinstance(session, str) else session.session_id
    return [judged.event.envelope.event_type for judged in memory.verdicts(session_id) if judged.outcome == "applied"]


# Attach or create


def test_open_creates_a_session_and_starts_it() -> None:
    client, memory = memory_client()
    called: list[str] = []
    session = client.open(
        "thread-42",
        user_id="u1",
        state={"n": 1},
        data_classes=("financial",),
        validate=lambda: called.append("validate"),
        connect=lambda: called.append("connect"),
    )
    assert session.session_id == given_session_id("acme", "thread-42").session_id
    assert (session.state, session.local_state, called) == ({"n": 1}, "Active", ["validate", "connect"])
    view = memory.view_session(session)
    assert (view.state, view.user_id, view.external_id, view.data_classes) == (
        "Active",
        "u1",
        "thread-42",
        ("financial",),
    )


def test_open_attaches_to_a_session_that_exists() -> None:
    client, memory = memory_client()
    first = client.open("thread-42", user_id="u1", state={"n": 1})
    first.message("user", "one")
    called: list[str] = []
    second = other_client(memory).open(
        "thread-42", user_id="u1", state={"n": 2}, connect=lambda: called.append("connect")
    )
    second.message("user", "two")
    assert (second.session_id, second.state, second.local_state) == (first.session_id, {"n": 1}, "Active")
    assert [turn.content for turn in first.conversation.read()] == ["one", "two"]
    assert called == []
    assert memory.rejections() == []


@pytest.mark.parametrize("given", FORMS)
def test_open_takes_a_uuid_in_each_form(given: str | uuid.UUID) -> None:
    client, memory = memory_client()
    session = client.open(given, user_id="u1")
    assert (session.session_id, memory.view_session(session).external_id) == (CANONICAL, None)
    assert [client.open(each, user_id="u1").session_id for each in FORMS] == [CANONICAL] * len(FORMS)


def test_open_in_a_block_ends_the_session_and_detach_leaves_it() -> None:
    client, memory = memory_client()
    with client.open("thread-42", user_id="u1") as session:
        session.lifecycle.detach()
    assert memory.view_session(session).state == "Active"
    with client.open("thread-42", user_id="u1") as session:
        session.activity("llm")
    assert memory.view_session(session).state == "Terminated"


def time_out(memory: InMemoryTransport, session: Session) -> None:
    """Let a session time out whose process has died."""
    memory.silence(session)
    memory.advance(61)
    memory.silence(session, silent=False)


def test_open_resumes_what_a_dead_process_left_if_it_is_asked_to() -> None:
    client, memory = memory_client()
    died = client.open("thread-42", user_id="u1", state={"n": 1}, resume=True)
    assert died.local_state == "Active"  # a new one
    time_out(memory, died)
    assert other_client(memory).open("thread-42", user_id="u1").local_state == "Timeout"
    opened = [other_client(memory).open("thread-42", user_id="u1", resume=True) for _ in range(2)]
    assert [(each.session_id, each.local_state) for each in opened] == [(died.session_id, "Active")] * 2
    assert opened[0].state == {"n": 1}

    async def open_later() -> str | None:
        time_out(memory, opened[0])
        session = await AsyncSessionClient.wrap(client).open("thread-42", user_id="u1", resume=True)
        return session.local_state

    assert asyncio.run(open_later()) == "Active"
    assert events_of(memory, died).count("session_resumed") == 2


def test_of_two_that_resume_at_once_one_does_and_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    client, memory = memory_client()
    died = client.open("thread-42", user_id="u1")
    time_out(memory, died)
    resume, faster = Lifecycle.resume, list[str | None]()

    def resume_late(self: Lifecycle, *args: Any) -> Any:
        if not faster:
            faster.append(None)
            faster.append(other_client(memory).open("thread-42", user_id="u1", resume=True).local_state)
        return resume(self, *args)

    monkeypatch.setattr(Lifecycle, "resume", resume_late)
    late = client.open("thread-42", user_id="u1", resume=True)
    assert (faster, late.local_state) == ([None, "Active"], "Active")


def test_a_session_that_cannot_be_resumed_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    client, memory = memory_client()
    died = client.open("thread-42", user_id="u1")
    time_out(memory, died)

    def refuse(*_args: Any) -> Any:
        raise Rejected("session_resumed", "phase_order", "not now")
        yield

    monkeypatch.setattr(Lifecycle, "resume", refuse)
    with pytest.raises(Rejected, match="not now"):
        client.open("thread-42", user_id="u1", resume=True)


def test_a_text_of_two_tenants_names_two_sessions() -> None:
    client, memory = memory_client()
    ours = client.open("thread-42", user_id="u1")
    theirs = other_client(memory, tenant_id="globex").open("thread-42", user_id="u1")
    assert ours.session_id != theirs.session_id
    assert [memory.view_session(each).external_id for each in (ours, theirs)] == ["thread-42"] * 2


def test_of_threads_that_open_an_id_at_once_one_creates_it() -> None:
    client, memory = memory_client()
    clients = [client, *(other_client(memory, agent_id=f"pod-{n}") for n in range(7))]
    begin, opened = threading.Barrier(len(clients)), list[Session]()

    def open_it(one: SessionClient) -> None:
        begin.wait(60)
        opened.append(one.open("thread-42", user_id="u1"))

    threads = [threading.Thread(target=open_it, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({session.session_id for session in opened}) == 1
    assert [session.local_state for session in opened] == ["Active"] * len(clients)
    assert events_of(memory, opened[0]).count("session_created") == 1
    assert {judged.event.envelope.event_type for judged in memory.rejections()} <= {"session_created"}


def test_the_loser_of_two_creators_opens_the_winners_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process creates it between the question and our creation."""
    told: list[object] = []
    client, memory = memory_client(on_rejected=told.append)
    other = other_client(memory)
    find, winners = opening.find_place, list[Session]()

    def find_and_lose(at: opening.Opening, session_id: str) -> opening.Place:
        place = find(at, session_id)
        if not winners:
            winners.append(other.session(user_id="u1", session_id="thread-42", state={"n": 2}))
        return place

    monkeypatch.setattr(opening, "find_place", find_and_lose)
    session = client.open("thread-42", user_id="u1", state={"n": 1})
    assert session.state == {"n": 2}
    session.message("user", "one")
    memory.advance(5)
    assert events_of(memory, session).count("session_created") == 1
    assert [judged.reason for judged in memory.rejections()] == ["session_exists"]
    assert told == []
    assert not session.lost


# A new session


@pytest.mark.parametrize("verb", ["session", "create"])
@pytest.mark.parametrize("given", ["thread-42", CANONICAL, uuid.UUID(CANONICAL)])
def test_a_new_session_of_an_id_that_exists_raises_and_changes_nothing(verb: str, given: str | uuid.UUID) -> None:
    client, memory = memory_client()
    told: list[object] = []
    second = memory_client(memory=memory, agent_id="pod-2", on_rejected=told.append, on_error=told.append)[0]
    with client.session(user_id="u1", session_id=given, state={"paid": []}) as first:
        for one in (second, client):
            with pytest.raises(SessionExists, match=f"session {first.session_id} exists: .*open"):
                getattr(one, verb)(user_id="u2", session_id=given, state={"paid": [1]})
        memory.advance(6)
        first.update_state({"paid": ["flight"]}, wait=False)
        assert events_of(memory, first) == [
            *("session_created", "session_phase_changed", "session_phase_changed", "session_started"),
            "state_updated",
        ]
        assert memory.view_session(first).state == "Active"
    assert [judged.reason for judged in memory.rejections()] == ["session_exists"] * 2
    assert told == []


def test_a_session_of_a_new_id_is_this_clients_own() -> None:
    client, memory = memory_client()
    with client.session(user_id="u1", session_id="thread-42") as session:
        session.activity("llm")
    idle = client.create(user_id="u1", session_id="thread-43")
    assert (idle.local_state, memory.view_session(idle).external_id) == ("Idle", "thread-43")
    idle.start()
    assert memory.rejections() == []


def test_a_new_session_without_an_id_waits_for_nothing() -> None:
    client, memory = memory_client()
    memory.silence_control(silent=True)
    with client.session(user_id="u1") as session:
        session.activity("llm")
    with pytest.raises(Unavailable):
        client.session(user_id="u1", session_id="thread-42")


def test_a_new_session_of_an_archived_id_raises() -> None:
    client, memory = memory_client()
    with client.session(user_id="u1", session_id="thread-42"):
        pass
    memory.advance(ARCHIVED_S)
    with pytest.raises(SessionExists, match="is archived"):
        client.session(user_id="u1", session_id="thread-42")


def test_without_a_control_api_no_id_can_be_given() -> None:
    settings = ProducerSettings.from_env({})
    client, _ = memory_client(settings=settings)

    def refuse() -> None:
        raise SettingsError("SESSIONARY_CONTROL_URL is not set")

    client.core.ports.control.check_configured = refuse  # type: ignore[method-assign]
    openings: list[Callable[[], object]] = [
        lambda: client.open("thread-42", user_id="u1"),
        lambda: client.session(user_id="u1", session_id="thread-42"),
        lambda: client.create(user_id="u1", session_id="thread-42"),
    ]
    for opened in openings:
        with pytest.raises(SettingsError, match="CONTROL_URL"):
            opened()
    client.session(user_id="u1")


# Whose session it is


def test_open_refuses_the_session_of_another_service_and_of_another_user() -> None:
    client, memory = memory_client()
    first = client.open("thread-42", user_id="u1")
    with pytest.raises(SessionExists, match=r"is of the service service: `client\.attach` shares it"):
        other_client(memory, service_id="billing").open("thread-42", user_id="u1")
    with pytest.raises(SessionExists, match="serves another user") as raised:
        other_client(memory).open("thread-42", user_id="u2")
    assert "u1" not in str(raised.value)
    memory.advance(5)
    before = len(memory.events())
    assert events_of(memory, first)[-1] == "session_started"
    assert len(memory.events()) == before
    assert memory.rejections() == []


# Ends


def test_a_session_that_never_started_is_continued_by_one_successor() -> None:
    client, memory = memory_client()

    def fail() -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        client.open("thread-42", user_id="u1", connect=fail)
    first_id = given_session_id("acme", "thread-42").session_id
    assert memory.view_session(first_id).state == "Terminated"
    second = client.open("thread-42", user_id="u1")
    assert second.session_id == successor_id("acme", first_id)
    created = memory.events(second.session_id)[0].payload
    assert isinstance(created, SessionCreated)
    assert (created.parent_session_id, created.external_id) == (first_id, "thread-42")
    assert other_client(memory).open("thread-42", user_id="u1").session_id == second.session_id


@pytest.fixture
def idle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cancelled session be one that waited too long for its user, as polls report it."""
    ask = InMemoryTransport.poll_sessions

    def poll(self: InMemoryTransport, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        changes = ask(self, known, timeout_s)
        sessions = [
            each._replace(reason_code="user_idle") if each.reason_code == "cancelled" else each
            for each in changes.sessions
        ]
        return changes._replace(sessions=sessions)

    monkeypatch.setattr(InMemoryTransport, "poll_sessions", poll)


@pytest.mark.usefixtures("idle_ends")
@pytest.mark.parametrize("links", [1, 3, 64, 65])
@pytest.mark.parametrize("given", ["thread-42", CANONICAL])
def test_an_id_leads_to_the_newest_of_its_sessions(given: str, links: int) -> None:
    client, memory = memory_client()
    opened: list[str] = []
    for _ in range(links):
        session = client.open(given, user_id="u1")
        opened.append(session.session_id)
        session.cancel()
    newest = client.open(given, user_id="u1")
    assert len({*opened, newest.session_id}) == links + 1
    assert other_client(memory).open(given, user_id="u1").session_id == newest.session_id
    parents = [
        event.payload.parent_session_id for event in memory.events() if isinstance(event.payload, SessionCreated)
    ]
    assert parents == [None, *opened]


@pytest.mark.usefixtures("idle_ends")
def test_a_session_that_was_archived_is_continued_too() -> None:
    client, memory = memory_client()
    first = client.open("thread-42", user_id="u1")
    first.cancel()
    memory.advance(ARCHIVED_S)
    second = client.open("thread-42", user_id="u1")
    assert second.session_id == successor_id("acme", first.session_id)


@pytest.mark.usefixtures("idle_ends")
def test_an_id_leads_to_the_newest_although_the_first_one_is_forgotten() -> None:
    client, memory = memory_client()
    first = client.open("thread-42", user_id="u1")
    first.cancel()
    memory.advance(10 * 86_400)
    second = client.open("thread-42", user_id="u1")
    second.cancel()
    memory.advance(6 * 86_400)
    unknown = KnownSession(first.session_id, "", 0, None, -1, None)
    assert memory.poll_sessions([unknown], 1.0).sessions[0].state is None
    assert client.open("thread-42", user_id="u1").session_id == successor_id("acme", second.session_id)


@pytest.mark.usefixtures("idle_ends")
def test_an_id_leads_to_the_newest_although_the_first_64_are_forgotten() -> None:
    """A chat of some months: of its sessions, those of the last 14 days are known."""
    client, memory = memory_client()
    for days, links in ((10, 66), (6, 10)):
        for _ in range(links):
            client.open("thread-42", user_id="u1").cancel()
        memory.advance(days * 86_400)
    newest = client.open("thread-42", user_id="u1")
    assert len({event.envelope.session_id for event in memory.events()}) == 77
    assert other_client(memory).open("thread-42", user_id="u1").session_id == newest.session_id


@pytest.mark.parametrize("later_s", [0, ARCHIVED_S])
@pytest.mark.parametrize("end", ["session_closes", "user_leaves"])
def test_a_session_that_ends_while_it_is_opened_is_not_opened(
    end: str, later_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at work when the client asks, and over when it attaches."""
    client, memory = memory_client()
    first = other_client(memory).open("thread-42", user_id="u1", limits=Limits(user_idle_ms=60_000))
    with first.turn():
        pass
    find, found = opening.find_place, list[opening.Place]()

    def find_and_end(at: opening.Opening, session_id: str) -> opening.Place:
        found.append(find(at, session_id))
        if len(found) == 1:
            if end == "session_closes":
                first.close()
            else:
                memory.advance(61)
            memory.advance(later_s)
        return found[-1]

    monkeypatch.setattr(opening, "find_place", find_and_end)
    if end == "session_closes" and not later_s:
        with pytest.raises(SessionEnded, match="its work is over"):
            client.open("thread-42", user_id="u1")
    else:
        second = client.open("thread-42", user_id="u1")
        assert (second.session_id, second.local_state) == (successor_id("acme", first.session_id), "Active")


def test_open_takes_an_id_of_version_7_of_any_age() -> None:
    """The judge creates no session of such an id once it is older than 14 days."""
    told: list[object] = []
    client, memory = memory_client(on_rejected=told.append)
    given = new_session_id(now_ms=1_600_000_000_000)
    session = client.open(given, user_id="u1", state={"n": 1})
    assert (session.session_id, session.state) == (successor_id("acme", given), {"n": 1})
    assert other_client(memory).open(given, user_id="u1").session_id == session.session_id
    created = memory.events(session.session_id)[0].payload
    assert isinstance(created, SessionCreated)
    assert created.parent_session_id == given
    assert [judged.reason for judged in memory.rejections()] == ["too_old"]
    assert told == []
    with pytest.raises(Rejected, match="too_old"):
        client.session(session_id=given, user_id="u1")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda session: session.complete(), "completed"),
        (lambda session: session.cancel(), "cancelled"),
        (lambda session: session.close(), "closed"),
        (lambda session: session.lifecycle.force_close(), "abnormal_termination"),
    ],
)
def test_after_another_end_the_error_says_what_to_do(end: Callable[[Session], None], reason: str) -> None:
    client, memory = memory_client()
    first = client.open("thread-42", user_id="u1")
    end(first)
    for one in (client, other_client(memory)):
        with pytest.raises(SessionEnded, match=rf"has ended \({reason}\).*another id.*parent='{first.session_id}'"):
            one.open("thread-42", user_id="u1")
    assert len(events_of(memory, first)) == 5


def test_open_waits_for_the_process_that_starts_the_session() -> None:
    client, memory = memory_client()
    waiting = client.create(user_id="u1", session_id="thread-42")
    with pytest.raises(Unavailable, match="is being started by another process"):
        memory_client(memory=memory, settings=ProducerSettings.from_env({}, verdict_timeout_s=1.0))[0].open(
            "thread-42", user_id="u1"
        )
    waiting.start()
    assert client.open("thread-42", user_id="u1").local_state == "Active"


# Ids


@pytest.mark.parametrize("faulty", FAULTY)
def test_each_verb_refuses_what_cannot_be_an_id(faulty: str) -> None:
    client, memory = memory_client()
    verbs: list[Callable[[], object]] = [
        lambda: client.open(faulty, user_id="u1"),
        lambda: client.attach(faulty),
        lambda: client.claim(faulty),
        lambda: client.follow(faulty),
        lambda: client.conversation(faulty),
    ]
    if faulty is not None:
        verbs += [
            lambda: client.session(user_id="u1", session_id=faulty),
            lambda: client.create(user_id="u1", session_id=faulty),
            lambda: client.session(user_id="u1", parent=faulty),
            lambda: client.open("thread-42", user_id="u1", parent=faulty),
        ]
    for verb in verbs:
        with pytest.raises(Invalid) as raised:
            verb()
        assert raised.value.reason == "invalid_value"
    assert memory.events() == []


@pytest.mark.parametrize("given", [*FORMS, "thread-42", "Grüße", "Gru\u0308ße"])
def test_each_verb_takes_each_form_of_an_id(given: str | uuid.UUID) -> None:
    client, memory = memory_client()
    session = client.open(given, user_id="u1")
    session.message("user", "one")
    assert client.attach(given).session_id == session.session_id
    assert other_client(memory).claim(given).session_id == session.session_id
    assert [turn.content for turn in client.conversation(given)] == ["one"]
    with client.follow(given) as follower:
        assert (view := follower.wait_next()) is not None
        assert view.session_id == session.session_id
    for child in (
        client.session(user_id="u1", parent=given),
        client.create(user_id="u1", parent=given),
        client.open("child", user_id="u1", parent=given),
    ):
        created = memory.events(child.session_id)[0].payload
        assert isinstance(created, SessionCreated)
        assert created.parent_session_id == session.session_id
    assert session.session_id == given_session_id("acme", given).session_id
    assert memory.view_session(given).session_id == session.session_id


# A closed and a disabled client


def test_a_closed_client_opens_nothing() -> None:
    client, memory = memory_client()
    client.close()
    with pytest.raises(ClientClosed):
        client.open("thread-42", user_id="u1")
    assert memory.events() == []


def test_a_disabled_client_opens_its_own_sessions() -> None:
    settings = ProducerSettings.from_env({}, disabled=True)
    with SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings) as client:
        first = client.open("thread-42", user_id="u1", state={"n": 1})
        first.update_state({"n": 2}, wait=False)
        second = client.open("thread-42", user_id="u1")
        assert (second.session_id, second.state, second.local_state) == (first.session_id, {"n": 2}, "Active")
        with pytest.raises(SessionExists):
            client.session(user_id="u1", session_id="thread-42")
        with pytest.raises(SessionExists, match="another user"):
            client.open("thread-42", user_id="u2")
        second.close()
        assert client.open("thread-42", user_id="u1").local_state == "Active"
