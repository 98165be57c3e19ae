"""Who does not own a session cannot drive it: what becomes of such events, up to ClickHouse."""

from sessionary.schemas.events import SessionActivity, SessionTakenOver, StateUpdated
from sessionary.schemas.events.session import SessionTerminated
from sessionary.schemas.records import RejectedEvent, SessionState
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.types import Limits
from tests.integration.pipeline_rig import PipelineRig
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, changelog_of, wait_judged
from tests.support.processes import Processes
from tests.support.reading import read_records

LASTING = Limits(model_ms=3_600_000, override=True)
EPOCH = 2  # of the session, once its owner has taken it over from itself
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
