"""Transactions on a session's content, and rollback to a snapshot.

Covers R-003-58 to R-003-61, C-34, and trap 15: each transaction has pending values of its own.
"""

import asyncio
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, NotAllowed, Rejected, Session, VersionConflict
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import SessionRolledBack, StateUpdated, TxnBegun, TxnCommitted, TxnRolledBack
from sessionary.schemas.limits import TRANSACTION_MS, TRANSACTIONS_MAX
from sessionary.schemas.records import SessionState


class Stage:
    """A session of an Active client, and another client that reads and writes it."""

    def __init__(self) -> None:
        self.client, self.memory = memory_client()
        self.session = self.client.create(user_id="u", state={"balance": 10, "tags": ["a"]}).start()
        self.other = self.attach()

    def attach(self) -> Session:
        client, _ = memory_client(memory=self.memory, agent_id="other")
        return client.attach(self.session.session_id)

    @property
    def row(self) -> SessionState:
        return self.memory.core.log.find_row(self.session.session_id)

    def committed(self) -> dict[str, Any]:
        """Return the content that a reader has."""
        self.other.sync()
        return self.other.state

    def audited(self, kind: str) -> list[tuple[str, str, str | None]]:
        records = self.memory.audit()
        return [(each.event_type, each.reason_code, each.transaction_id) for each in records if each.kind == kind]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_pending_values_are_the_writers_until_the_commit(stage: Stage) -> None:
    """R-003-58, R-003-59, R-003-60."""
    transaction = stage.session.transaction()
    with transaction as pending:
        (open_one,) = stage.row.transactions
        assert open_one.transaction_id == transaction.transaction_id
        assert open_one.started_at == stage.row.last_event_at
        pending["balance"] = 7
        tags = pending["tags"]
        assert isinstance(tags, list)
        tags.append("b")  # a deep copy: nothing else changes
        assert stage.committed() == stage.session.state == {"balance": 10, "tags": ["a"]}
    assert stage.committed() == stage.session.state == {"balance": 7, "tags": ["a", "b"]}
    assert (stage.row.version, stage.session.version, stage.row.transactions) == (2, 2, ())
    name = transaction.transaction_id
    assert stage.audited("transaction") == [("txn_begun", "begun", name), ("txn_committed", "committed", name)]
    assert stage.memory.rejections() == []


def test_a_block_left_by_an_error_rolls_back(stage: Stage) -> None:
    """R-003-61."""

    def fail() -> None:
        with stage.session.transaction() as pending:
            pending["balance"] = 0
            raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stage.committed() == {"balance": 10, "tags": ["a"]}
    assert (stage.row.version, stage.row.transactions) == (1, ())
    assert [each[:2] for each in stage.audited("transaction")] == [
        ("txn_begun", "begun"),
        ("txn_rolled_back", "rolled_back"),
    ]


def test_the_second_of_two_conflicting_commits_is_refused(stage: Stage) -> None:
    """R-003-60, R-003-91; trap 15: two open transactions do not mix."""

    def commit_both() -> None:
        with stage.session.transaction() as mine, stage.other.transaction() as others:  # which ends first
            assert len(stage.row.transactions) == 2
            others["balance"] = 1
            mine["balance"] = 2
            assert others["balance"] == 1

    with pytest.raises(VersionConflict) as caught:
        commit_both()
    assert (caught.value.version, caught.value.state) == (2, {"balance": 1, "tags": ["a"]})
    assert stage.committed() == stage.session.state == {"balance": 1, "tags": ["a"]}
    assert stage.row.transactions == ()
    assert [each.reason for each in stage.memory.rejections()] == ["version_conflict"]
    with stage.session.transaction() as again:
        again["balance"] = 2
    assert stage.committed()["balance"] == 2


def test_a_plain_update_between_begin_and_commit_is_a_conflict_too(stage: Stage) -> None:
    def commit_late() -> None:
        with stage.session.transaction() as pending:
            pending["balance"] = 0
            stage.other.update_state({"balance": 5})

    with pytest.raises(VersionConflict):
        commit_late()
    assert stage.committed() == {"balance": 5}


def test_values_that_are_not_json_are_refused_and_rolled_back(stage: Stage) -> None:
    with pytest.raises(Invalid), stage.session.transaction() as pending:
        pending["balance"] = {1, 2}
    assert (stage.row.version, stage.row.transactions) == (1, ())


def test_a_transaction_needs_an_active_session(stage: Stage) -> None:
    stage.session.pause()
    with pytest.raises(NotAllowed), stage.session.transaction():
        pass
    assert stage.row.transactions == ()


def test_open_ones_are_bounded(stage: Stage) -> None:
    for number in range(TRANSACTIONS_MAX):
        stage.session.emit(TxnBegun(f"t{number}"))
    with pytest.raises(Rejected, match="too_many_transactions"), stage.session.transaction():
        pass
    stage.session.emit(TxnRolledBack("t0"))
    with stage.session.transaction() as pending:
        pending["balance"] = 3
    assert stage.committed()["balance"] == 3


def test_one_whose_writer_died_ends_with_its_time(stage: Stage) -> None:
    stage.session.emit(TxnBegun("dead"))
    for _ in range(TRANSACTION_MS // 600_000):
        stage.memory.advance(600)
        stage.session.activity("llm")
    stage.session.emit(TxnCommitted("dead", 1, 2, "{}"))
    assert [each.reason for each in stage.memory.rejections()] == ["unknown_transaction"]
    with stage.session.transaction() as pending:
        pending["balance"] = 4
    ends = [each for each in stage.audited("transaction") if each[2] == "dead"]
    assert ends == [("txn_begun", "begun", "dead"), ("txn_rolled_back", "expired", "dead")]
    assert stage.committed()["balance"] == 4


def test_open_ones_end_with_the_session(stage: Stage) -> None:
    stage.session.emit(TxnBegun("left"))
    stage.session.close()
    assert stage.audited("transaction")[-1] == ("txn_rolled_back", "session_ended", "left")
    assert stage.row.transactions == ()


def test_one_that_never_began_commits_nothing(stage: Stage) -> None:
    stage.session.emit(TxnCommitted("never", 1, 2, '{"balance": 0}'))
    stage.session.emit(TxnRolledBack("never"))
    assert [each.reason for each in stage.memory.rejections()] == ["unknown_transaction"] * 2
    assert stage.committed()["balance"] == 10


def test_twenty_writers_lose_nothing(stage: Stage) -> None:
    """The final version counts the accepted updates."""
    writers = [stage.attach() for _ in range(20)]
    left = set(range(20))
    while left:
        for number in sorted(left):
            try:
                with writers[number].transaction() as pending:
                    pending[f"w{number}"] = True
                    with writers[number - 1].transaction() as rival:  # one of both is refused
                        rival["rival"] = number
            except VersionConflict:
                with writers[number].transaction() as pending:
                    pending[f"w{number}"] = True
            left.discard(number)
    accepted = [each for each in stage.audited("transaction") if each[0] == "txn_committed"]
    assert stage.row.version == 1 + len(accepted) == 41
    assert {f"w{number}" for number in range(20)} <= stage.committed().keys()


def test_the_blocks_of_asyncio_do_the_same() -> None:
    async def work() -> dict[str, Any]:
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client, client.session(user_id="u", state={"n": 0}) as session:
            async with session.transaction() as pending:
                pending["n"] = 1
            before = await session.snapshot()
            await session.update_state({"n": 2})
            assert await session.rollback(before) == 4
            return session.state

    assert asyncio.run(work()) == {"n": 1}


# Rollback of a session: a new version with an older content.


def test_a_rollback_is_a_new_version_with_the_content_of_a_snapshot(stage: Stage) -> None:
    """C-34, R-000-02."""
    before = stage.session.snapshot()
    stage.session.update_state({"balance": -1})
    stage.session.update_state({"balance": -2})
    after = stage.session.snapshot()
    assert stage.session.rollback(before, reason="a mistake") == 4
    assert stage.committed() == stage.session.state == {"balance": 10, "tags": ["a"]}
    assert stage.row.version == stage.session.version == 4
    record = next(each for each in stage.memory.audit() if each.kind == "rollback")
    assert (record.event_type, record.version, record.snapshot_id) == ("session_rolled_back", 4, before)
    assert record.reason.endswith(f"snapshot {before}: a mistake")
    assert stage.session.rollback(after) == 5  # history is not erased
    assert stage.committed() == {"balance": -2}
    updates = [event.payload for event in stage.memory.events() if isinstance(event.payload, StateUpdated)]
    assert len(updates) == 2
    assert stage.memory.rejections() == []


def test_the_head_of_the_chain_is_a_target_too(stage: Stage) -> None:
    paused = stage.session.pause()
    stage.session.resume()
    stage.session.update_state({"balance": 0})
    stage.session.rollback(paused)
    assert stage.committed() == {"balance": 10, "tags": ["a"]}


def test_a_rollback_reaches_any_older_snapshot(stage: Stage) -> None:
    """The content of the last 16 is kept; that of an older one is folded from the log."""
    oldest = stage.session.snapshot()
    for number in range(20):
        stage.session.update_state({"balance": number})
        stage.session.snapshot()
    assert stage.session.rollback(oldest, reason="a mistake") == 22
    assert stage.committed() == stage.session.state == {"balance": 10, "tags": ["a"]}
    record = [each for each in stage.memory.audit() if each.kind == "rollback"][-1]
    assert (record.version, record.snapshot_id) == (22, oldest)
    assert record.reason.endswith(f"snapshot {oldest}, which its owner has brought: a mistake")


def test_a_content_that_is_brought_is_that_of_a_snapshot_of_the_session(stage: Stage) -> None:
    stage.session.emit(SessionRolledBack("snap_nowhere", 1, 2, None, '{"balance":99}'))
    assert [each.reason for each in stage.memory.rejections()] == ["unknown_snapshot"]
    assert stage.row.version == 1
    before = stage.session.snapshot()
    stage.session.emit(SessionRolledBack(before, 1, 2, None, '{"balance":99}'))
    assert stage.committed() == {"balance": 10, "tags": ["a"]}  # of what it keeps the processor takes its own


def test_a_far_target_of_a_broken_log_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle, a missing parent: the processor does not tell a state that is not its own."""

    def differs(*_: object) -> None:
        raise Invalid("hash_mismatch", "snapshot s: its events do not lead to the state; see the runbook")

    oldest = stage.session.snapshot()
    for number in range(20):
        stage.session.update_state({"balance": number})
        stage.session.snapshot()
    monkeypatch.setattr(stage.session.core.services.runs, "fetch_snapshot", differs)
    with pytest.raises(Rejected, match=r"what the log has does not lead to it .*see the runbook.*the processor keeps"):
        stage.session.rollback(oldest)
    assert stage.committed() == stage.session.state == {"balance": 19}
    assert stage.row.version == 21


def test_an_unknown_target_changes_nothing(stage: Stage) -> None:
    with pytest.raises(Rejected, match="has no snapshot snap_nowhere: the processor keeps the last 16"):
        stage.session.rollback("snap_nowhere")
    assert stage.row.version == 1


def test_only_the_owner_of_an_active_session_rolls_back(stage: Stage) -> None:
    before = stage.session.snapshot()
    client, _ = memory_client(memory=stage.memory, service_id="stranger")
    with pytest.raises((NotAllowed, Rejected), match="rolled_back"):
        client.attach(stage.session.session_id).rollback(before)
    stage.session.pause()
    with pytest.raises(NotAllowed):
        stage.session.rollback(before)
    assert stage.row.version == 1


def test_a_rollback_on_another_version_is_a_conflict(stage: Stage) -> None:
    before = stage.session.snapshot()
    stage.other.sync()
    stage.other.update_state({"balance": 1})
    with pytest.raises(VersionConflict) as caught:
        stage.session.rollback(before)
    assert caught.value.state == stage.session.state == {"balance": 1}
    assert stage.session.rollback(before) == 3
