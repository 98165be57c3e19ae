"""Replays of sessions whose agents use the verbs of the past: the record has what they ask for."""

import contextlib

import pytest

from sessionary.producers import Rejected, Session, SessionClient, tool
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


def roll_back_far(session: Session) -> object:
    """Roll back to a snapshot that the processor does not keep any more, and to an unknown one."""
    oldest = session.snapshot()
    for number in range(20):
        look(f"{number}")
        session.update_state({"n": number})
        session.snapshot()
    with contextlib.suppress(Rejected):
        session.rollback("snap_0123456789ab")
    session.rollback(oldest, reason="a mistake")
    return session.state


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_far_rollback_and_a_refused_one_are_no_difference(snapshots: bool) -> None:
    """C-34: the processor refuses such a target at first, in the record as in the replay."""
    client, memory = memory_client()
    with client.session(user_id="u1", state={"n": None}, snapshots=snapshots) as session:
        assert roll_back_far(session) == {"n": None}
    assert [each.reason for each in memory.rejections()] == ["unknown_snapshot"] * 2

    def unchanged(replay: Replay) -> None:
        with replay.session() as again:
            assert roll_back_far(again) == {"n": None}

    with client.replay(session) as replay:
        unchanged(replay)
    checked(replay)
    with client.replay(session, mode="fork", baseline=unchanged) as fork:
        unchanged(fork)
    assert fork.is_valid


def test_what_is_refused_in_the_replay_alone_is_a_difference() -> None:
    client, _ = memory_client()
    with client.session(user_id="u1", state={"n": 1}) as session:
        look("a")
    with client.replay(session) as replay, replay.session() as again:
        look("a")
        with pytest.raises(Rejected, match="has no snapshot"):
            again.rollback("snap_0123456789ab")
    assert replay.difference is not None
    assert replay.difference.startswith("the replay has session_rolled_back")
