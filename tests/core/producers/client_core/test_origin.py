"""A session that starts from another one's snapshot."""

import asyncio
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, Json, Session, SessionClient, SessionLost
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionCreated

NOTES: dict[str, Json] = {"notes": ["likes tea"]}


def begin(client: SessionClient, memory: InMemoryTransport) -> tuple[Session, str]:
    """Return a session that has ended, and the id of its last snapshot, which has NOTES."""
    with client.session(user_id="u1", data_classes=["personal"]) as session:
        session.update_state(NOTES)
    snapshot_id = memory.view_session(session).snapshot_id
    assert snapshot_id is not None
    return session, snapshot_id


def creation(memory: InMemoryTransport, session: Session) -> SessionCreated:
    (created,) = [e.payload for e in memory.events(session.session_id) if isinstance(e.payload, SessionCreated)]
    return created


@pytest.mark.parametrize("by_id", [False, True])
def test_a_session_starts_with_the_context_of_the_last_snapshot_of_another_one(by_id: bool) -> None:
    """R-003-01, 27: its first snapshot continues the chain; R-003-24: others have no parent."""
    client, memory = memory_client()
    with client:
        first, snapshot_id = begin(client, memory)
        assert creation(memory, first).snapshot.parent_snapshot_id is None
        source = first.session_id if by_id else first
        with client.session(user_id="u1", from_session=source, from_snapshot=snapshot_id) as second:
            assert second.state == NOTES
        with client.open("thread-1", user_id="u1", from_session=source) as third:
            assert third.state == NOTES
            third.lifecycle.detach()
        with client.open("thread-1", user_id="u1", from_session=source) as again:
            assert again.session_id == third.session_id
    for session in (second, third):
        created = creation(memory, session)
        assert created.parent_session_id == first.session_id
        assert created.restored_from_snapshot_id == created.snapshot.parent_snapshot_id == snapshot_id
        assert memory.view_session(session).data_classes == ("personal",)
    assert memory.rejections() == []


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_session_starts_from_any_snapshot_of_another_one(is_archived: bool) -> None:
    client, memory = memory_client()
    with client:
        with client.session(user_id="u1", data_classes=["personal"]) as session:
            session.update_state(NOTES)
            older = session.snapshot()
            session.update_state({"notes": []})
            session.snapshot()
        if is_archived:
            memory.advance(30 * 86_400)
            with pytest.raises(SessionLost, match="name a snapshot in from_snapshot"):
                client.session(user_id="u1", from_session=session.session_id)
        with client.session(user_id="u1", from_session=session.session_id, from_snapshot=older) as second:
            assert second.state == NOTES
        created = creation(memory, second)
        assert created.restored_from_snapshot_id == created.snapshot.parent_snapshot_id == older
        assert memory.view_session(second).data_classes == ("personal",)
        with pytest.raises(Invalid, match="serves another user"):
            client.session(user_id="u2", from_session=session.session_id, from_snapshot=older)


def test_no_session_starts_from_a_snapshot_of_a_broken_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle, a missing parent: the processor does not tell a state that is not its own."""
    client, memory = memory_client()

    def differs(*_: object) -> None:
        raise Invalid("hash_mismatch", "snapshot s: its events do not lead to the state; see the runbook")

    with client:
        with client.session(user_id="u1") as session:
            older = session.snapshot()
            session.snapshot()
        sent = len(memory.events())
        monkeypatch.setattr(client.core.ports.runs, "fetch_snapshot", differs)
        with pytest.raises(Invalid, match=r"does not lead to it .*see the runbook.* Start from the last one"):
            client.session(user_id="u1", from_session=session, from_snapshot=older)
        assert len(memory.events()) == sent


def test_an_asynchronous_session_starts_from_another_one() -> None:
    client, memory = memory_client()

    async def start_two(first: Session, snapshot_id: str) -> list[object]:
        other = AsyncSessionClient.wrap(client)
        async with other.session(user_id="u1", from_session=first) as second:
            found: list[object] = [second.state]
        third = await other.create(user_id="u1", from_session=first, from_snapshot=snapshot_id)
        return [*found, third.state]

    with client:
        assert asyncio.run(start_two(*begin(client, memory))) == [NOTES, NOTES]
    assert memory.rejections() == []


def test_what_no_session_can_start_from_is_an_error_and_nothing_is_sent() -> None:
    client, memory = memory_client()
    stranger, _ = memory_client("other", memory=memory)
    with client, stranger:
        first, snapshot_id = begin(client, memory)
        theirs, _ = begin(stranger, memory)
        sent = len(memory.events())
        wrong: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
            (Invalid, "is of tenant other", {"from_session": theirs}),
            (SessionLost, "which the tenant does not have", {"from_session": "thread-of-another"}),
            (Invalid, "serves another user", {"from_session": first, "user_id": "u2"}),
            (Invalid, "has no snapshot snap_0: name one", {"from_session": first, "from_snapshot": "snap_0"}),
            (SessionLost, "its events have left Kafka", {"from_session": "unknown", "from_snapshot": snapshot_id}),
            (Invalid, "name its session in from_session", {"from_snapshot": snapshot_id}),
            (Invalid, "two contents", {"from_session": first, "state": {}}),
            (Invalid, "give one of them", {"from_session": first, "parent": theirs.session_id}),
        )
        for error, text, given in wrong:
            with pytest.raises(error, match=text):
                client.session(**{"user_id": "u1", **given})
        assert len(memory.events()) == sent
