"""Heartbeats of clients whose epoch is over; each is judged by the fold and by the oracle.

One is rejected for each client and epoch; those after it are only counted.
"""

from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory


def shared_session() -> tuple[OracleRig, EventFactory]:
    """Return a session whose epoch 1 is over."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.send(agent, "session_paused")
    assert rig.send(agent, "session_resumed", snapshot_id=None) == "applied"
    agent.epoch = 2
    return rig, agent


def beat(rig: OracleRig, agent: EventFactory, epoch: int, producer: str = "old") -> str:
    return rig.send(agent, "heartbeat", {"epoch": epoch, "producer_id": producer})


def test_a_fenced_client_leaves_one_dead_letter_an_epoch() -> None:
    rig, agent = shared_session()
    assert beat(rig, agent, 1) == "rejected stale_epoch"
    before = rig.row_of(agent)
    assert [beat(rig, agent, 1) for _ in range(3)] == ["fenced beat"] * 3
    assert rig.row_of(agent) is before
    assert rig.outcomes[-1].rejections == ["stale_epoch"]  # metrics and callers that wait know it
    assert rig.outcomes[-1].emitted == []
    rig.send(agent, "session_paused")
    assert rig.send(agent, "session_resumed", snapshot_id=None) == "applied"
    assert [beat(rig, agent, 2), beat(rig, agent, 1)] == ["rejected stale_epoch", "fenced beat"]


def test_each_fenced_client_is_reported_by_itself() -> None:
    rig, agent = shared_session()
    for number in range(16):
        assert beat(rig, agent, 1, f"old-{number}") == "rejected stale_epoch"
    assert beat(rig, agent, 1, "one-more") == "rejected stale_epoch"
    assert beat(rig, agent, 1, "one-more") == "rejected stale_epoch"  # the row has no room for it
    assert beat(rig, agent, 1, "old-15") == "fenced beat"


def test_what_else_a_fenced_client_sends_is_always_rejected() -> None:
    rig, agent = shared_session()
    assert beat(rig, agent, 1) == "rejected stale_epoch"
    for _ in range(2):
        assert rig.send(agent, "session_activity", {"epoch": 1}) == "rejected stale_epoch"
    assert [beat(rig, agent, 3), beat(rig, agent, 3)] == ["rejected future_epoch"] * 2
