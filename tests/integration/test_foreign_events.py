"""Who does not own a session cannot drive it: what becomes of such events, up to ClickHouse."""

import json

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import SessionActivity, SessionResumed, SessionTakenOver, StateUpdated
from sessionary.schemas.events.session import SessionTerminated
from sessionary.schemas.records import QuotaVerdict, RejectedEvent, RulesActivation, SessionState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.signatures import SIGNATURE, SigningKeys
from sessionary.schemas.types import Limits
from tests.integration.pipeline_rig import PipelineRig
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, changelog_of, count_judged, wait_judged
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.signing import KEYS

LASTING = Limits(model_ms=3_600_000, override=True)
EPOCH = 2  # of the session, once its owner has taken it over from itself
OPERATOR_TOKEN = "token-of-operators"
END = SessionTerminated("cancelled", None, None)


def forged_events(owner: Agent) -> dict[str, OutgoingRecord]:
    """Return well-formed events of the live session that must be rejected, by the reason."""
    stranger, foreign = Agent(service_id="stranger"), Agent("globex", owner.service_id)
    stranger.key = owner.key
    foreign.key = foreign.key._replace(session_id=owner.key.session_id)
    return {
        "foreign_tenant": owner.event(END, tenant_id="globex", epoch=EPOCH),
        "unknown_session": foreign.event(END, epoch=EPOCH),  # under the other tenant's own key
        "not_owner": stranger.event(END, epoch=EPOCH),
        "not_member": stranger.event(StateUpdated(1, 2, '{"mine":1}'), epoch=EPOCH),
        "stale_epoch": owner.event(SessionActivity("llm", None), epoch=EPOCH - 1),
    }


def forged_claims(owner: Agent, answered: OutgoingRecord) -> list[OutgoingRecord]:
    """Return records that say of themselves that a server role made them, and none has.

    `answered`: an operator's event for another session, as the control API signed it.
    """
    key, name = owner.key.encoded(), owner.key.session_id
    operator = Agent(service_id="control-api")
    operator.key = owner.key
    claim = operator.event(SessionResumed(message="go on", as_operator=True), epoch=EPOCH)
    assert claim.value is not None
    signed = [KEYS.sign(key, claim.value)]
    (copied,) = (pair for pair in answered.headers if pair[0] == SIGNATURE)
    verdict = encode_record(QuotaVerdict("live_sessions", "", 0, granted=True, limit=1, instance=name))
    begins = encode_record(RulesActivation(*NEWEST_RULES, "mallory", name))
    unknown = SigningKeys({"k9": "a key that no worker of this group has"})
    forged = [
        claim,  # without a signature
        claim._replace(headers=[("signature", signed[0][1][:-2])]),
        claim._replace(headers=signed * 2),
        claim._replace(headers=[unknown.sign(key, claim.value)]),
        claim._replace(headers=[copied]),
        OutgoingRecord(key, verdict),
        OutgoingRecord(key, verdict, [copied]),
        OutgoingRecord(None, begins),
    ]
    return [*forged, answered._replace(key=key)]  # replayed from another session


def row_and_position(kafka: KafkaSettings, agent: Agent) -> tuple[SessionState, set[int]]:
    """Return a session's row, and the rules in force."""
    positions = changelog_of(kafka)[1]
    return row_of(kafka, agent), {position.rules.version for position in positions.values()}


def row_of(kafka: KafkaSettings, agent: Agent) -> SessionState:
    """Return the session's row without what tells of rejections."""
    row = changelog_of(kafka)[0][agent.key.encoded()]
    assert isinstance(row, SessionState)
    return row._replace(audit_seq=0, producers=(), rejections=())


def test_a_forged_event_changes_no_row_and_leaves_one_letter_and_one_audit_row(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_sinks(("audit", "rejected"))
    pipeline.start_processor()
    sender, owner = Sender(kafka), Agent()
    sender.send(*owner.start(LASTING), owner.event(SessionTakenOver()))
    wait_judged(kafka, len(sender.flush()))
    before, forged = row_of(kafka, owner), forged_events(owner)
    assert (before.state, before.epoch, before.owner_service) == ("Active", EPOCH, "billing")
    sender.send(*forged.values())
    wait_judged(kafka, len(sender.flush()))
    assert row_of(kafka, owner) == before
    assert len(changelog_of(kafka)[0]) == 1
    letters = [each for each in read_records(kafka, kafka.topics.rejected) if isinstance(each, RejectedEvent)]
    assert sorted((each.reason, each.value) for each in letters) == sorted(
        (reason, record.value) for reason, record in forged.items()
    )
    pipeline.wait_landed(kinds=("audit", "rejected"))
    rows = pipeline.sql(
        "SELECT reason_code, security, count() FROM {db}.audit FINAL WHERE kind = 'rejection' "
        "GROUP BY reason_code, security ORDER BY toString(reason_code)"
    )
    # One under another tenant's own key names a session that does not exist: it attacks no one.
    assert rows == [[reason, str(reason != "unknown_session").lower(), "1"] for reason in sorted(forged)]
    owned = pipeline.sql(
        "SELECT DISTINCT tenant_id, session_id, owner_service FROM {db}.audit FINAL WHERE security ORDER BY ALL"
    )
    assert owned == [["acme", owner.key.session_id, "billing"]]
    written = pipeline.sql("SELECT reason, service_id, events FROM {db}.v_foreign_writers ORDER BY toString(reason)")
    services = {"foreign_tenant": "billing", "stale_epoch": "billing"}
    assert written == [
        [reason, services.get(reason, "stranger"), "1"] for reason in sorted(forged) if reason != "unknown_session"
    ]


def test_what_only_a_server_role_may_write_counts_only_with_its_signature(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_sinks(("audit", "history", "rejected"))
    pipeline.start_processor(api_tokens=json.dumps({OPERATOR_TOKEN: {"principal": "alice", "roles": ["operator"]}}))
    sender, owner, other = Sender(kafka), Agent(), Agent()
    sender.send(*owner.start(LASTING), owner.event(SessionTakenOver()), *other.start(LASTING))
    wait_judged(kafka, len(sender.flush()))
    environ = {"SESSIONARY_CONTROL_URL": pipeline.control_url, "SESSIONARY_OPERATOR_TOKEN": OPERATOR_TOKEN}
    client = ControlApiClient(OperatorSettings.from_env(environ))
    client.act_on_session(other.key.session_id, other.key.tenant_id, "pause", {"reason": "look at it"}, "once")
    (answered,) = (
        OutgoingRecord(stored.key, stored.value, stored.headers)
        for stored in read_topic(kafka, kafka.topics.events)
        if any(name == SIGNATURE for name, _ in stored.headers)
    )
    before, forged = row_and_position(kafka, owner), forged_claims(owner, answered)
    judged = count_judged(kafka)
    sender.send(*forged)
    sender.flush()
    wait_judged(kafka, judged + len(forged))
    assert row_and_position(kafka, owner) == before
    letters = [each for each in read_records(kafka, kafka.topics.rejected) if isinstance(each, RejectedEvent)]
    reasons = ["bad_signature"] * (len(forged) - 1) + ["key_mismatch"]
    assert sorted((each.reason, each.value or b"") for each in letters) == sorted(
        (reason, record.value or b"") for reason, record in zip(reasons, forged, strict=True)
    )
    pipeline.wait_landed(kinds=("audit", "history", "rejected"))
    rows = pipeline.sql(
        "SELECT reason_code, security, count() FROM {db}.audit FINAL WHERE kind = 'rejection' GROUP BY ALL ORDER BY ALL"
    )
    assert rows == [["bad_signature", "true", str(len(forged) - 1)], ["key_mismatch", "true", "1"]]
    # The key is on record: by which a record was signed, and by which it was not.
    known, _ = KEYS.fingerprint().split()
    keys = pipeline.sql(
        "SELECT DISTINCT splitByChar(':', arrayFirst(h -> h.name = 'signature', headers).value)[1] AS key "
        "FROM {db}.history FINAL WHERE event_type IN ('session_paused', 'session_resumed') ORDER BY key"
    )
    assert keys == [[""], ["k9"], [known]]
