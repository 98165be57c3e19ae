"""Sessions of ids that callers give, through a real broker, a processor and ClickHouse."""

import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from sessionary.infra.cli.commands.sessions.lookup import find_session
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.producers import EventRejected, Session, SessionClient, SessionExists
from sessionary.schemas.ids import given_session_id, successor_id
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig, started_pipeline
from tests.support.processes import Processes

TEXT = "Grüße/42: a#b"


def client_of(pipeline: PipelineRig, folder: Path, name: str, told: list[EventRejected]) -> SessionClient:
    return SessionClient(
        tenant_id=TENANT,
        service_id="billing",
        agent_id=name,
        settings=pipeline.client_settings(folder, name),
        on_rejected=told.append,
    )


def test_of_creators_at_once_one_wins_and_the_others_have_no_power(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = started_pipeline(kafka, processes, clickhouse)
    pipeline.start_sinks(("audit", "history", "rejected"))
    told: list[EventRejected] = []
    clients = [client_of(pipeline, tmp_path, f"pod-{n}", told) for n in range(4)]
    begin = threading.Barrier(len(clients))
    opened: list[Session] = []

    def open_it(client: SessionClient) -> None:
        begin.wait(60)
        opened.append(client.open(TEXT, user_id="u1", state={"paid": []}))

    threads = [threading.Thread(target=open_it, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    first_id = given_session_id(TENANT, TEXT).session_id
    assert [session.session_id for session in opened] == [first_id] * len(clients)
    assert [session.local_state for session in opened] == ["Active"] * len(clients)

    winner = opened[0]
    with pytest.raises(SessionExists), clients[-1].session(user_id="u2", session_id=TEXT) as loser:
        loser.message("user", "not in the winner's session")
    winner.update_state({"paid": ["flight"]})
    assert [turn.content for turn in winner.conversation.read()] == []
    asked = pipeline.ask(quote(TEXT, safe=""))
    assert (asked["session_id"], asked["external_id"], asked["user_id"]) == (first_id, TEXT, "u1")
    assert (asked["state"], asked["epoch"], asked["state_json"]) == ("Active", 1, '{"paid":["flight"]}')
    assert {rejection["reason"] for rejection in asked["rejections"]} == {"session_exists"}
    winner.complete()
    winner.core.emitter.wait_position(60)

    def fail() -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        clients[0].open("thread-43", user_id="u1", connect=fail)
    second = clients[1].open("thread-43", user_id="u1")
    begun_id = given_session_id(TENANT, "thread-43").session_id
    assert second.session_id == successor_id(TENANT, begun_id)
    assert clients[2].open("thread-43", user_id="u1").session_id == second.session_id
    for client in clients:
        client.flush(60)
    pipeline.wait_landed()
    source = ClickHouseClient(clickhouse)
    assert find_session(source, TEXT, None)["session_id"] == first_id
    assert find_session(source, "thread-43", TENANT)["session_id"] == second.session_id
    assert find_session(source, first_id[:8], None)["external_id"] == TEXT
    rows = pipeline.sql("SELECT session_id FROM {db}.v_sessions WHERE external_id = 'thread-43' ORDER BY opened_at")
    assert rows == [[begun_id], [second.session_id]]
    ends = pipeline.sql(
        "SELECT transition, agent_id FROM {db}.audit FINAL WHERE kind = 'transition' "
        f"AND session_id = '{first_id}' ORDER BY audit_seq"
    )
    assert [transition for transition, _ in ends] == ["T01", "T02", "T13"]
    assert told == []
    for client in clients:
        client.close()
