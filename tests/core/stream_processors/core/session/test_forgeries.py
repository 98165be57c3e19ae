"""Records that claim authority count only if a server role has signed them; beside the oracle."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import EVENT_TYPES, OPERATORS
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import QuotaVerdict, RejectedEvent, RulesActivation
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.signatures import SigningKeys
from sessionary.schemas.types import AnnouncedRules, Limits
from sessionary.stream_processors.core import sequencing
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session import judge as session_judge
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import ANNOUNCING, DECODER, FIRST_POSITION, SETTINGS, START_MS, OracleRig
from tests.support.event_factory import EventFactory, snapshot
from tests.support.judges import JUDGE
from tests.support.second_rules import SECOND_RULES
from tests.support.signing import KEYS, Headers

OLD, NEW = {"k1": "the former secret, of 32 characters"}, {"k2": "the present secret, of 32 characters"}
FOREIGN = SigningKeys({"test": "a secret that a client has invented"})
UNKNOWN = SigningKeys({"k9": "a key that no worker of this group has"})
FIELDS: dict[str, dict[str, Any]] = {
    "session_paused": {"snapshot": None},
    "session_terminated": {"reason": "cancelled"},
    "session_migration_offered": {"migration_id": "m2"},
}


def forgeries(key: bytes | None, value: bytes) -> dict[str, Headers]:
    """Return headers with which a client may try to pass a record off, by their fault."""
    name, right = KEYS.sign(key, value)
    return {
        "it has no signature": [],
        "it has 2 signatures": [(name, right)] * 2,
        "its signature names no key": [(name, right.partition(b":")[2])],
        "it is signed by key k9": [UNKNOWN.sign(key, value)],
        "its signature by key test is of another record, or": [FOREIGN.sign(key, value)],
        "its signature by key test is of another record": [(name, right[:-2])],
        "its signature by key test": [KEYS.sign(b"acme:another", value)],
    }


def asked() -> tuple[OracleRig, EventFactory]:
    """Return a session that waits for an answer."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(hold_ms=60_000))
    assert rig.send(agent, "session_paused", question="Deploy?", snapshot=snapshot("asked")) == "applied"
    return rig, agent


def hand_of(agent: EventFactory, producer: str = "hand") -> EventFactory:
    hand = EventFactory(service="control-api", producer=producer)
    hand.key, hand.epoch, hand.head = agent.key, agent.epoch, agent.head
    return hand


def answer(agent: EventFactory) -> bytes:
    return hand_of(agent).event_bytes("session_resumed", {"actor": "alice"}, approved=True, as_operator=True)


def assert_refused(rig: OracleRig, key: bytes | None, value: bytes, fault: str) -> None:
    """Fail unless the last record left one refusal, one row for security, and its bytes."""
    outcome = rig.outcomes[-1]
    (line,), (letter,) = rig.last_audits(), (each for _, each in outcome.records_on("rejected"))
    assert (line.kind, line.reason_code, line.security) == ("rejection", "bad_signature", True)
    assert fault in line.reason
    assert isinstance(letter, RejectedEvent)
    assert (letter.reason, letter.security, letter.key, letter.value) == ("bad_signature", True, key, value)
    assert outcome.rejections == ["bad_signature"]


def test_a_forged_answer_is_refused_and_the_question_stays_open() -> None:
    rig, agent = asked()
    key, value, before = agent.key.encoded(), answer(agent), rig.row_of(agent)
    for fault, headers in forgeries(key, value).items():
        assert rig.forge(key, value, headers) == "rejected bad_signature"
        assert_refused(rig, key, value, fault)
        row = rig.row_of(agent)
        assert row._replace(audit_seq=0, rejections=()) == before._replace(audit_seq=0, rejections=())
    assert (rig.last_audits()[0].actor, rig.last_audits()[0].event_type) == ("alice", "session_resumed")
    assert rig.append(key, value) == "applied"  # the operator's own
    assert rig.row_of(agent).state == "Active"


@pytest.mark.parametrize("event_type", sorted(EVENT_TYPES[payload] for payload in OPERATORS))
def test_every_event_that_says_an_operator_sent_it_needs_a_signature(event_type: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    value = hand_of(agent).event_bytes(event_type, **{**FIELDS.get(event_type, {}), "as_operator": True})
    key = agent.key.encoded()
    assert rig.forge(key, value) == "rejected bad_signature"
    assert_refused(rig, key, value, f"{event_type} says that an operator sent it: it has no signature")
    assert rig.append(key, value) != "rejected bad_signature"


def test_an_event_that_claims_nothing_is_not_asked_for_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, agent = OracleRig(), EventFactory()

    def fail(*_: object) -> str:
        raise AssertionError("its headers were read")

    monkeypatch.setattr(session_judge, "find_forgery", fail)
    rig.start(agent)
    assert rig.append(agent.key.encoded(), agent.event_bytes("session_paused"), [("signature", b"x")]) == "applied"


def test_a_signed_event_is_refused_under_another_session_and_a_copy_is_a_duplicate() -> None:
    rig, agent = asked()
    other = EventFactory("other")
    rig.start(other)
    key, value = agent.key.encoded(), answer(agent)
    headers = [KEYS.sign(key, value)]
    assert rig.append(other.key.encoded(), value, headers) == "rejected key_mismatch"
    assert rig.last_audits()[0].security
    moved = hand_of(other).event_bytes("session_resumed", {"actor": "alice"}, approved=True, as_operator=True)
    assert rig.append(other.key.encoded(), moved, headers) == "rejected bad_signature"
    assert rig.append(key, value, headers) == "applied"
    assert rig.append(key, value, headers) == "duplicate"
    agent.epoch, agent.head = rig.row_of(agent).epoch, rig.row_of(agent).snapshot.snapshot_id
    assert rig.send(agent, "session_paused", question="Again?", snapshot=snapshot("again")) == "applied"
    assert rig.append(key, value, headers) == "duplicate"
    assert rig.row_of(agent).state == "Paused"


def test_a_copy_is_refused_once_the_ledger_has_forgotten_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only senders of a past epoch are forgotten for good, and the event is of that epoch."""
    monkeypatch.setattr(sequencing, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(sequencing, "FORGOTTEN_MAX", 2)
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_paused", question="Deploy?", snapshot=snapshot("asked")) == "applied"
    key, value = agent.key.encoded(), answer(agent)
    assert rig.append(key, value) == "applied"
    other, copies = agent, []
    for n in range(4):
        other = hand_of(agent, f"other-{n}")
        other.service, other.epoch = "billing", 2
        assert rig.send(other, "session_activity") == "applied"
        copies.append(rig.append(key, value))
    row = rig.row_of(agent)
    known = {sequencing.hash_producer(ledger.producer_id) for ledger in row.producers}
    assert sequencing.hash_producer("hand") not in known | {entry.id_hash for entry in row.forgotten}
    assert rig.send(other, "session_paused", snapshot=snapshot("held")) == "applied"
    assert rig.send(other, "session_resumed") == "applied"
    copies += [rig.append(key, value) for _ in range(2)]
    refused = ["rejected late_filler", "rejected late_filler", "rejected too_many_producers"]
    assert copies == ["duplicate", *refused, "rejected stale_epoch", "duplicate"]


def waiting() -> tuple[OracleRig, EventFactory, int]:
    """Return a session that waits for its tenant's quota, and the offset of its claim."""
    position = FIRST_POSITION._replace(rules=NEWEST_RULES._replace(session_quotas=True))
    rig, agent = OracleRig(position=position), EventFactory()
    assert rig.send(agent, "session_created") == "applied"
    return rig, agent, rig.next_offset - 1


def test_a_forged_verdict_admits_no_session() -> None:
    rig, agent, offset = waiting()
    verdict = encode_record(QuotaVerdict("live_sessions", "", offset, granted=True, limit=2, instance="q1"))
    key, quota = agent.key.encoded(), rig.row_of(agent).quota
    for fault, headers in forgeries(key, verdict).items():
        assert rig.forge(key, verdict, headers) == "rejected bad_signature"
        assert_refused(rig, key, verdict, fault)
        assert rig.row_of(agent).quota == quota
    other = EventFactory("other")
    assert rig.send(other, "session_created") == "applied"
    assert rig.append(other.key.encoded(), verdict, [KEYS.sign(key, verdict)]) == "rejected bad_signature"
    assert rig.append(key, verdict) == "tick"
    assert rig.append(key, verdict) == "tick"  # a copy is about a claim that is settled
    granted = rig.row_of(agent).quota
    assert granted is not None
    assert granted.granted
    assert rig.forge(EventFactory("unknown").key.encoded(), verdict) == "rejected bad_signature"


def test_a_copy_of_a_verdict_in_another_partition_frees_no_slot() -> None:
    """There the session is unknown, which would be answered as if it had released its slot."""
    settings, agent = SETTINGS._replace(partitions=4), EventFactory()
    key = agent.key.encoded()
    verdict = encode_record(QuotaVerdict("live_sessions", "", 7, granted=True, limit=2, instance="q1"))
    home = partition_of(key, 4)
    for partition in range(4):
        rig = OracleRig(settings, partition=partition)
        found = rig.append(key, verdict)
        assert found == ("tick" if partition == home else "rejected wrong_partition")
        assert len(rig.outcomes[-1].records_on("quotas")) == (partition == home)
        assert rig.forge(key, verdict) == "rejected bad_signature"


def test_a_forged_activation_moves_no_rules_and_is_on_record() -> None:
    rig = OracleRig(position=ANNOUNCING)
    rig.tick()
    value = encode_record(RulesActivation(*SECOND_RULES, "ops", "w1"))
    for fault, headers in forgeries(None, value).items():
        assert rig.forge(None, value, headers) == "rejected bad_signature"
        assert_refused(rig, None, value, fault)
        assert rig.fold.position.rules == NEWEST_RULES
        assert rig.fold.position.announced == AnnouncedRules(*SECOND_RULES, 0, "ops")
    agent = EventFactory()
    assert rig.forge(agent.key.encoded(), value) == "rejected bad_signature"
    assert rig.append(agent.key.encoded(), value) == "rejected bad_key"
    assert rig.append(None, value) == "tick"
    assert rig.fold.position.rules == SECOND_RULES
    assert rig.append(None, value) == "tick"  # a copy begins nothing
    assert rig.forge(None, value) == "rejected bad_signature"


def fold(log: list[LogRecord], secrets: dict[str, str]) -> tuple[PartitionState, list[BatchResult]]:
    state = PartitionState(0, SETTINGS._replace(keys=SigningKeys(secrets)), DECODER, JUDGE)
    state.finish_loading()
    outcomes = []
    for record in log:
        batch = state.begin()
        assert batch.apply(record)
        outcomes.append(batch.finish())
        state.merge(batch)
    return state, outcomes


def test_a_refold_gives_the_same_after_the_key_was_changed() -> None:
    rig, agent = asked()
    log = list(rig.log)

    def append(value: bytes, secrets: dict[str, str]) -> None:
        key = agent.key.encoded()
        log.append(LogRecord(len(log), START_MS, key, value, [SigningKeys(secrets).sign(key, value)]))

    append(answer(agent), OLD)
    agent.epoch = 2
    append(hand_of(agent, "second").event_bytes("session_paused", snapshot=None, as_operator=True), {**NEW, **OLD})
    append(hand_of(agent, "third").event_bytes("session_resumed", as_operator=True), {"k9": "x" * 32})
    first, refold = (fold(log, secrets) for secrets in ({**OLD, **NEW}, {**NEW, **OLD}))
    assert refold[1][-1].rejections == ["bad_signature"]
    assert [outcome.counts.applied for outcome in refold[1][-3:]] == [1, 1, 0]
    assert [each.emitted for each in first[1]] == [each.emitted for each in refold[1]]
    assert dict(first[0].rows) == dict(refold[0].rows)
    before_the_new_one_was_known = fold(log[:-2], OLD)
    assert [each.emitted for each in before_the_new_one_was_known[1]] == [each.emitted for each in refold[1][:-2]]
