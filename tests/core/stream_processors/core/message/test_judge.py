"""What messages come to for the conversation of their session."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import message_key
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, MESSAGE_CHARACTERS_MAX
from sessionary.schemas.records import MessageState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX
from sessionary.stream_processors.store.stores import MemoryStore
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, StoreRig
from tests.core.stream_processors.core.child_rig import ChildRig
from tests.support.event_factory import EventFactory

REPLAYED = [(REPLAYED_FROM, b"1")]


class MessageRig(ChildRig):
    """A fold; the detached run `r1` is at work."""

    def message(self, content: str | None = "hello", run_id: str | None = None, **fields: Any) -> str:
        """Send a message of the user."""
        given: dict[str, Any] = {"role": "user", "content": content, "artifact_id": None, "name": None}
        return self.send(self.agent, "message_appended", {"run_id": run_id}, **{**given, **fields})

    def turn(self, number: int) -> MessageState:
        """Return the row of a turn."""
        row = self.fold.rows[message_key(self.agent.key.encoded(), number)]
        assert isinstance(row, MessageState)
        return row

    @property
    def turns(self) -> int:
        """The number of the session's last turn."""
        return self.row_of(self.agent).turns


def test_turns_are_numbered_in_the_order_of_the_log() -> None:
    rig = MessageRig()
    assert rig.message() == "applied"
    rig.at += 10
    assert rig.message(None, "r1", role="tool", artifact_id="f1", name="search") == "applied"
    assert rig.turns == 2
    row = MessageState(*rig.agent.key, 1, None, "agent-1", "billing", "user", None, rig.at - 10, "hello")
    assert rig.turn(1) == row
    reported = row._replace(turn=2, run_id="r1", role="tool", name="search", at=rig.at, content=None, artifact_id="f1")
    assert rig.turn(2) == reported


def test_an_empty_run_id_names_no_run() -> None:
    rig = MessageRig()
    assert rig.message(run_id="") == "applied"
    assert rig.turn(1).run_id is None


def test_two_clients_share_the_numbers() -> None:
    rig = MessageRig()
    other = EventFactory(producer="q")
    assert rig.message("a") == "applied"
    assert rig.send(other, "message_appended", {"epoch": rig.agent.epoch}, content="b") == "applied"
    assert rig.message("c") == "applied"
    assert [rig.turn(number).content for number in (1, 2, 3)] == ["a", "b", "c"]


def test_a_duplicate_or_rejected_message_takes_no_turn() -> None:
    rig = MessageRig()
    assert rig.message() == "applied"
    again = rig.agent.event_bytes("message_appended", {"producer_seq": rig.agent.seq})
    assert rig.append(rig.agent.key.encoded(), again) == "duplicate"
    assert rig.message("x" * (MESSAGE_CHARACTERS_MAX + 1)) == "rejected invalid_value"
    assert rig.audits()[-1].reason == "content has 16385 characters, more than 16384: send it as an artifact"
    assert rig.message(run_id="none") == "rejected unknown_run"
    assert rig.turns == 1
    assert rig.message("é" * MESSAGE_CHARACTERS_MAX) == "applied"
    assert rig.turn(2).content == "é" * MESSAGE_CHARACTERS_MAX


def test_a_message_of_a_detached_run_is_a_turn_also_while_its_session_is_held() -> None:
    rig = MessageRig()
    assert rig.say("session_paused", None) == "applied"
    clocks = rig.row_of(rig.agent).last_work_at
    rig.at += 5
    assert rig.message() == "rejected illegal_transition"
    assert rig.message("from the run", "r1") == "applied"
    assert (rig.turns, rig.turn(1).run_id, rig.turn(1).content) == (1, "r1", "from the run")
    assert rig.row_of(rig.agent).last_work_at == clocks
    assert rig.found().last_event_at == rig.at
    assert rig.say("run_completed") == "applied"
    assert rig.message("too late", "r1") == "rejected illegal_transition"


def test_a_replayed_message_that_fills_its_gap_is_the_next_turn() -> None:
    rig = MessageRig()
    missed = rig.agent.event_bytes("message_appended", content="missed")
    too_long = rig.agent.event_bytes("message_appended", content="x" * (MESSAGE_CHARACTERS_MAX + 1))
    assert rig.message("later") == "applied"
    rig.at += 5
    assert rig.append(rig.agent.key.encoded(), missed) == "rejected late_filler"
    assert rig.append(rig.agent.key.encoded(), missed, REPLAYED) == "applied"
    assert [line.kind for line in rig.audits()] == ["gap_filled"]
    assert (rig.turns, rig.turn(1).content, rig.turn(2).content) == (2, "later", "missed")
    assert rig.turn(2).at == rig.at
    assert rig.append(rig.agent.key.encoded(), missed, REPLAYED) == "duplicate"
    assert rig.append(rig.agent.key.encoded(), too_long, REPLAYED) == "rejected late_filler"
    assert rig.turns == 2
    assert rig.message("next") == "applied"
    assert rig.turn(3).content == "next"


def test_a_later_turn_takes_the_row_of_the_oldest() -> None:
    rig = MessageRig()
    for number in range(1, CONVERSATION_TURNS_MAX + 3):
        assert rig.message(f"no. {number}") == "applied"
    session = rig.agent.key.encoded()
    rows = [rig.fold.rows[key] for key in rig.fold.children(session)]
    assert sorted(row.turn for row in rows) == list(range(3, CONVERSATION_TURNS_MAX + 3))
    assert message_key(session, 1) == message_key(session, CONVERSATION_TURNS_MAX + 1)
    assert rig.turn(1).content == f"no. {CONVERSATION_TURNS_MAX + 1}"


def test_turns_vanish_with_their_session() -> None:
    rig = MessageRig(limits=Limits(archive_delay_ms=1_000))
    live, vanishing = rig.fold.live, rig.fold.vanishing
    assert rig.message("x" * 2_000, "r1") == "applied"
    assert rig.message() == "applied"
    assert (rig.fold.live, rig.fold.vanishing) == (live, vanishing)
    assert rig.say("run_completed") == "applied"
    assert rig.say("session_terminated", None, reason="closed", snapshot=None) == "applied"
    rig.leap(700_000)
    assert rig.fold.children(rig.agent.key.encoded()) == []
    assert [row for row in rig.fold.rows.values() if isinstance(row, MessageState)] == []


def test_a_row_of_a_turn_has_the_bound_of_every_row() -> None:
    rig = MessageRig()
    rules = rig.fold.position.rules._replace(row_bytes_max=20_000)
    rig.fold.load_position(rig.fold.position._replace(rules=rules))
    assert rig.message("é" * 12_000) == "rejected state_too_large"
    assert "the message's row would have" in rig.audits()[-1].reason
    assert rig.turns == 0
    assert rig.message("e" * 12_000) == "applied"
    key = message_key(rig.agent.key.encoded(), 2)  # turns 1 and 2 differ in no length
    size = len(key) + len(encode_record(rig.turn(1)))
    for limit, outcome in ((size - 1, "rejected state_too_large"), (size, "applied")):
        rig.fold.load_position(rig.fold.position._replace(rules=rules._replace(row_bytes_max=limit)))
        assert rig.message("e" * 12_000) == outcome
    assert rig.turns == 2


class Conversation:
    """A fold on a store: one session, whose turns survive a restart."""

    def __init__(self) -> None:
        self.rig, self.agent, self.offset = StoreRig(), EventFactory(), 0
        self.session = self.agent.key.encoded()
        self.send("session_created")
        for phase in ("validating", "connecting"):
            self.send("session_phase_changed", phase=phase)
        self.send("session_started")

    def send(self, event_type: str, **fields: Any) -> None:
        value = self.agent.event_bytes(event_type, **fields)
        self.rig.fold_records([LogRecord(self.offset, START_MS + self.offset, self.session, value)])
        self.offset += 1

    def stored(self, turn: int) -> tuple[MessageState, bool]:
        """Return the row of a turn, and whether a content is stored apart from it."""
        key = message_key(self.session, turn)
        return self.rig.state.rows[key], self.rig.store.stored_row(key + CONTENT_SUFFIX) is not None


@pytest.mark.parametrize("is_compacted", [False, True])
def test_turns_are_the_same_after_a_restart(is_compacted: bool) -> None:
    talk = Conversation()
    for number in range(1, CONVERSATION_TURNS_MAX + 4):
        talk.send("message_appended", content="x" * (2_000 if number <= 2 else 1), artifact_id=None)
    talk.send("message_appended", content="y" * 3_000, artifact_id=None)
    talk.send("artifact_created", artifact_id="f", artifact_type="json", uri="file:///f")
    rows = dict(talk.rig.state.rows.items())
    children = set(talk.rig.state.children(talk.session))
    changelog = talk.rig.compacted_changelog() if is_compacted else talk.rig.changelog
    talk.rig.recover_from(MemoryStore(JOB.row_codec), changelog)
    assert dict(talk.rig.state.rows.items()) == rows
    assert set(talk.rig.state.children(talk.session)) == children
    assert len(children) == CONVERSATION_TURNS_MAX + 1
    assert talk.rig.state.position.rules == NEWEST_RULES
    # The content of the turn that had this row before is gone; another one is a record of its own.
    assert talk.stored(1) == (rows[message_key(talk.session, 1)], False)
    assert talk.stored(1)[0].turn == CONVERSATION_TURNS_MAX + 1
    assert talk.stored(4)[1]
    assert talk.stored(4)[0].content == "y" * 3_000
    talk.send("message_appended", content="next", artifact_id=None)
    assert talk.stored(5)[0].turn == CONVERSATION_TURNS_MAX + 5
