"""Replays of sessions whose agents use the verbs of the past: the record has what they ask for."""

from sessionary.producers import Session, SessionClient, tool
from sessionary.producers.replay.replay import Replay
from sessionary.producers.testing import memory_client


@tool(effect="read")
def look(place: str) -> str:
    return f"saw {place}"


def first_agent(client: SessionClient) -> str:
    with client.session(user_id="u1", state={"n": 1}) as session:
        session.update_state({"n": 2})
        session.snapshot()
        return session.session_id


def checked(replay: Replay) -> None:
    assert replay.difference is None
    assert (replay.counts.missed, replay.counts.blocked, replay.counts.executed) == (0, 0, 0)


def test_a_session_that_started_from_another_ones_snapshot_is_replayed() -> None:
    client, _ = memory_client()
    origin = first_agent(client)

    def agent(asked: SessionClient) -> tuple[str, object, str]:
        with asked.session(user_id="u1", from_session=origin) as session:
            return look("a"), session.state, session.session_id

    outcome = agent(client)
    assert outcome[:2] == ("saw a", {"n": 2})
    with client.session(user_id="u1", from_session=origin) as changed:
        assert changed.session_id != origin
    with client.replay(outcome[2]) as replay:
        assert agent(replay.client) == outcome
    checked(replay)
    with client.replay(outcome[2]) as replay, replay.session() as session:
        assert (look("a"), session.state) == outcome[:2]
    checked(replay)


def record(client: SessionClient) -> tuple[str, object]:
    with client.session(user_id="u1", state={"n": 1}, snapshots=True) as session:
        return session.session_id, agent(session)


def agent(session: Session) -> object:
    before = session.snapshot()
    found = look("a")
    with session.transaction() as pending:
        pending["n"] = 5
    session.save_checkpoint("import", {"done": 3})
    loaded = session.load_checkpoint("import")
    session.rollback(before)
    session.access("s3://bucket/file")
    return [found, loaded, session.state]


def test_transactions_checkpoints_and_rollbacks_are_replayed() -> None:
    client, _ = memory_client()
    session_id, outcome = record(client)
    assert outcome == ["saw a", {"done": 3}, {"n": 1}]
    with client.replay(session_id) as replay, replay.session() as session:
        assert agent(session) == outcome
    checked(replay)
