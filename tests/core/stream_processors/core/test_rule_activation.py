"""Rules begin with a record of the log, if the partition's owner announced them."""

import pytest

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import AnnouncedRules
from sessionary.stream_processors.core.model import Counts
from tests.core.fold_rig import FoldRig, activation_bytes, activation_record
from tests.core.oracle_rig import START_MS
from tests.core.stream_processors.core.test_uncommitted_batch import open_fold, tick
from tests.integration.refold import announce_again
from tests.support.event_factory import EventFactory
from tests.support.second_rules import SECOND_RULES
from tests.support.second_rules.known import second_activity

pytestmark = pytest.mark.usefixtures("second_rules")


def test_rules_begin_with_the_record_that_their_owner_announced() -> None:
    rig = FoldRig()
    assert rig.append(None, activation_bytes(SECOND_RULES)) == "rejected bad_key"
    assert rig.letter().detail == "a record without key is a tick, and this is none"
    announced = rig.announce(SECOND_RULES)
    (decision,) = rig.audits()
    assert (decision.kind, decision.event_type, decision.actor) == ("decision", "rules_announced", "ops")
    assert (decision.source_offset, decision.source_n, decision.audit_seq) == (1, 0, 0)
    assert announced.counts == Counts(0, 0, 0, 1, 0, 0, 1, 1)
    assert rig.fold.position == Position(1, START_MS, 0, 2, 1, announced=AnnouncedRules(*SECOND_RULES, 1, "ops"))
    assert rig.append(None, activation_bytes(SECOND_RULES._replace(row_bytes_max=1))) == "rejected bad_key"
    assert rig.append(b"acme:s", activation_bytes(SECOND_RULES)).startswith("rejected")
    assert rig.fold.position.rules == NEWEST_RULES
    assert rig.append(None, activation_bytes(SECOND_RULES)) == "tick"
    assert (rig.fold.position.rules, rig.fold.position.announced) == (SECOND_RULES, None)
    assert rig.append(None, activation_bytes(SECOND_RULES)) == "tick"  # the owner may have sent it twice
    assert (
        rig.append(None, activation_bytes(SECOND_RULES._replace(version=SECOND_RULES.version + 1)))
        == "rejected bad_key"
    )
    with pytest.raises(ValueError, match="are in force"):
        rig.announce(SECOND_RULES)


def test_a_setting_of_the_rules_in_force_is_changed_by_announcing_them_again() -> None:
    rig, longer = FoldRig(), SECOND_RULES._replace(finished_run_days=400)
    rig.activate(SECOND_RULES)
    assert rig.append(None, activation_bytes(longer)) == "tick"  # nothing begins that was not announced
    assert rig.fold.position.rules == SECOND_RULES
    rig.announce(longer, "on-call")
    (decision,) = rig.audits()
    assert (decision.actor, decision.reason) == (
        "on-call",
        "rules 3 begin, after rules 3; rows have at most 524288 bytes, outputs 2097152, rejected records 2097152; "
        "finished runs are kept for 400 days, and failed ones may be resumed for 86400000 ms",
    )
    assert rig.append(None, activation_bytes(longer)) == "tick"
    assert rig.fold.position.rules == longer
    with pytest.raises(ValueError, match="are in force"):
        rig.announce(longer)
    with pytest.raises(ValueError, match="are in force"):
        rig.announce(NEWEST_RULES)


def test_quotas_begin_and_end_with_the_rules_and_the_audit_trail_tells() -> None:
    rig, quotas = FoldRig(), SECOND_RULES._replace(quotas=True)
    for rules, says in ((quotas, True), (SECOND_RULES, False), (quotas, True)):
        rig.announce(rules, "on-call")
        (decision,) = rig.audits()
        assert decision.reason.endswith("; runs ask for quotas") == says
        again = rig.fold.begin()
        announced = rig.fold.position.announced
        assert announced is not None
        assert announced.rules == rules
        announce_again(again, decision)
        assert again.final_position.announced == announced
        assert rig.append(None, activation_bytes(rules, "on-call")) == "tick"
        assert rig.fold.position.rules == rules


@pytest.mark.parametrize("tokens", [False, True])
def test_sessions_ask_and_tokens_count_by_settings_of_their_own(tokens: bool) -> None:
    rig = FoldRig()
    for runs, sessions in ((False, True), (True, True), (True, False)):
        rules = SECOND_RULES._replace(quotas=runs, session_quotas=sessions, token_quotas=tokens)
        rig.announce(rules, "on-call")
        (decision,) = rig.audits()
        asking = [who for who in ("runs", "sessions") if f"; {who} ask for quotas" in decision.reason]
        assert asking == ["runs"] * runs + ["sessions"] * sessions
        assert decision.reason.endswith("; tokens count for quotas") == tokens
        again = rig.fold.begin()
        announce_again(again, decision)
        assert again.final_position.announced == rig.fold.position.announced
        assert rig.append(None, activation_bytes(rules, "on-call")) == "tick"
        assert rig.fold.position.rules == rules


def test_a_batch_is_judged_by_one_version_of_the_rules() -> None:
    rig = FoldRig()
    rig.announce(SECOND_RULES)
    batch = rig.fold.begin()
    begins = activation_record(1, START_MS, SECOND_RULES)
    assert batch.apply(tick(0, START_MS))
    assert not batch.apply(begins)
    assert batch.finish().position.rules == NEWEST_RULES
    rig.fold.merge(batch)
    batch = rig.fold.begin()
    assert batch.apply(begins)
    assert batch.apply(tick(2, START_MS))
    assert batch.finish().position.rules == SECOND_RULES


def test_an_announcement_counts_from_its_place_in_the_log_on() -> None:
    fold = open_fold()
    fold.load_position(fold.position._replace(announced=AnnouncedRules(*SECOND_RULES, 5, "ops")))
    batch = fold.begin()
    assert batch.apply(activation_record(4, START_MS, SECOND_RULES))
    assert batch.finish().rejections == ["bad_key"]
    assert batch.final_position.rules == NEWEST_RULES


def test_an_update_with_the_times_of_its_phases_stands_for_three_events() -> None:
    rig, agent, plain = FoldRig(), EventFactory("one"), EventFactory("three")
    for one in (agent, plain):
        rig.start(one)
    assert rig.send(agent, "state_updated", updating_at=1, persisting_at=2) == "applied"
    for phase in ("updating", "persisting"):
        assert rig.send(plain, "session_phase_changed", phase=phase) == "applied"
    assert rig.send(plain, "state_updated") == "applied"
    rows = [rig.row_of(one) for one in (agent, plain)]
    assert len({(row.state, row.phase, row.version, row.state_json) for row in rows}) == 1
    assert rows[0].phase == "processing"


def test_an_event_of_a_later_form_is_rejected_until_the_rules_it_came_with_begin() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    key = agent.key.encoded()
    early, late = (second_activity(agent.event_bytes("session_activity")) for _ in range(2))
    assert rig.append(key, early) == "rejected unknown_schema"
    rig.announce(SECOND_RULES)
    assert rig.append(key, early) == "rejected unknown_schema"
    assert rig.append(None, activation_bytes(SECOND_RULES)) == "tick"
    assert rig.append(key, late) == "applied"
    assert rig.send(agent, "session_activity") == "applied", "the former form stays known"


def test_a_row_has_as_many_bytes_as_the_rules_in_force_allow() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    content = '{"a": "' + "x" * SECOND_RULES.row_bytes_max + '"}'
    assert rig.send(agent, "state_updated", base_version=1, new_version=2, state_json=content) == "applied"
    rig.activate(SECOND_RULES)
    longer = content.replace("x", "xx", 10)
    assert rig.send(agent, "state_updated", base_version=2, new_version=3, state_json=longer) == (
        "rejected state_too_large"
    )


def test_before_rules_are_announced_everything_is_written_as_those_in_force_say() -> None:
    rig, agent = FoldRig(), EventFactory()
    first, second = Decoder(rules=NEWEST_RULES.version), Decoder(rules=SECOND_RULES.version)
    rig.start(agent)
    assert all(first.decode_record(value) for _, _, value, _ in rig.written if value is not None)
    rig.announce(SECOND_RULES)
    assert rig.send(agent, "session_activity") == "applied"
    written = [value for _, _, value, _ in rig.written if value is not None]
    assert [type(second.decode_record(value)).__name__ for value in written] == ["SessionState", "BatchRecord"]
    with pytest.raises(DecodeError):
        first.decode_record(written[-1])
