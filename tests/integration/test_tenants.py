"""Several tenants over one producer: each with its own token, and nothing of the others."""

import json
from pathlib import Path

import pytest

from sessionary.producers import SessionClient, SessionLost
from sessionary.schemas.codec import Event
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.support.processes import Processes
from tests.support.reading import read_events, read_records

OTHER, OTHER_TOKEN = "globex", "token-of-globex"


def test_two_tenants_of_one_producer_are_judged_apart(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor(api_tokens=json.dumps({TOKEN: TENANT, OTHER_TOKEN: OTHER}))
    settings = pipeline.client_settings(tmp_path, "agent")
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="agent", settings=settings) as client:
        other = client.for_tenant(OTHER, api_token=OTHER_TOKEN)
        sessions = {TENANT: client.create(user_id="u").start(), OTHER: other.create(user_id="u").start()}
        for session in sessions.values():
            session.pause()
            session.resume()  # each tenant's own token tells its verdict
        with pytest.raises(SessionLost):
            client.attach(sessions[OTHER].session_id)
        with pytest.raises(SessionLost):
            other.attach(sessions[TENANT].session_id)
        other.close()  # of its own sessions it ends none, and it leaves the producer to the other
        for session in (sessions[TENANT], client.create(user_id="u").start()):
            session.close()
        assert client.flush(120) == 0
        assert client.counters.refused == 0
    sent = [event.envelope for event in read_events(kafka) if isinstance(event, Event)]
    assert {envelope.producer_id for envelope in sent} == {client.producer_id}
    ids = {tenant: session.session_id for tenant, session in sessions.items()}
    assert {each.tenant_id for each in sent if each.session_id == ids[OTHER]} == {OTHER}
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    assert {(each.tenant_id, each.session_id) for each in audits} >= {*ids.items()}
    assert [each for each in audits if each.kind == "refusal"] == []
    assert "Terminated" not in {each.to_state for each in audits if each.tenant_id == OTHER}
