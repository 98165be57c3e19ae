"""Snapshots in ClickHouse: the chain of a session, and what is stored of each."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.measurements.conversation import RATIO_MAX, TURNS, table_ratio
from benchmarks.workload.conversation import hold_conversation
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.producers import ProducerSettings, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.events import SessionCreated
from sessionary.schemas.ids import snapshot_hash
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.snapshots import read_chain, stored_snapshot, whole_snapshot
from sessionary.schemas.types import AccessedResource, DataClass, Snapshot, SnapshotMessage, ToolExecution
from tests.support.aged_rows import AgedRows
from tests.support.clickhouse_rows import insert_block
from tests.support.event_factory import EventFactory
from tests.support.memory_rows import insert_memory


@tool(effect="read")
def search_papers(query: str) -> list[str]:
    if query == "broken":
        raise ValueError("no such index")
    return [query]


def stored_snapshots(client: ClickHouseClient, session_id: str) -> dict[str, Snapshot]:
    """Return the snapshots as ClickHouse has them, by their ids."""
    rows = client.fetch_rows(
        "SELECT hex(value_bytes) AS bytes FROM history FINAL WHERE (source_partition, source_offset) IN "
        f"(SELECT source_partition, source_offset FROM v_snapshots WHERE session_id = '{session_id}')"
    )
    events = [Decoder().decode_event(bytes.fromhex(row["bytes"])) for row in rows]
    found = [getattr(event.payload, "snapshot", None) for event in events if isinstance(event, Event)]
    return {each.snapshot_id: each for each in found if isinstance(each, Snapshot)}


def test_the_chain_of_a_session_is_walked_in_2n_plus_1_steps(tables: ClickHouseSettings) -> None:
    """R-003-25, R-003-26, R-003-31, in ClickHouse."""
    client, memory = memory_client()
    state = {"text": [f"line {number}" for number in range(2_000)]}
    with client, client.session(user_id="u", state=state, snapshots=True) as session:
        for query in ("a", "b", "c"):
            search_papers(query)
        with pytest.raises(ValueError, match="index"):
            search_papers("broken")
    insert_memory(tables, memory)
    database = ClickHouseClient(tables)
    rows = database.fetch_rows(f"SELECT * FROM v_snapshots WHERE session_id = '{session.session_id}' ORDER BY number")
    n = 4
    assert [row["side"] for row in rows] == ["", *["before", "succeeded"] * 3, "before", "failed", ""]
    assert all(row["is_linked"] for row in rows)
    parents = {row["snapshot_id"]: row["parent_snapshot_id"] for row in rows}
    name, steps = rows[-1]["snapshot_id"], 0
    while parents[name]:
        name, steps = parents[name], steps + 1
    assert (name, steps) == (rows[0]["snapshot_id"], 2 * n + 1)
    assert [row["encoding"] for row in rows] == ["full", *["delta"] * 9]
    assert rows[0]["compression"] == "gzip"
    assert rows[1]["compression_ratio"] > 10
    assert {row["server_version"] for row in rows} == {"1.0.0"}
    assert {row["protocol_version"] for row in rows} == {"2024-11-05"}
    chain = read_chain(stored_snapshots(database, session.session_id), rows[-1]["snapshot_id"])
    assert len(chain) == 2 * n + 2
    assert json.loads(chain[-1].state_json) == state


def test_each_snapshot_of_a_plain_session_tells_both_versions(tables: ClickHouseSettings) -> None:
    """R-003-31: at creation, pause and end they hold the content alone; their events have both."""
    client, memory = memory_client(settings=ProducerSettings(server_version="7.1"))
    with client, client.session(user_id="u") as session:
        session.pause()
        session.resume()
    insert_memory(tables, memory)
    rows = ClickHouseClient(tables).fetch_rows("SELECT * FROM v_snapshots ORDER BY number")
    assert [(row["event_type"], row["server_version"], row["protocol_version"]) for row in rows] == [
        (event_type, "7.1", "2024-11-05") for event_type in ("session_created", "session_paused", "session_terminated")
    ]


def test_one_select_has_the_chain_over_a_time_out_and_a_resume(tables: ClickHouseSettings) -> None:
    """R-003-42: root first, by the parents; and each content again, from what ClickHouse has."""
    client, memory = memory_client()
    state = {"number": 0, "text": [f"line {number}" for number in range(200)]}

    @tool(effect="read")
    def slow(number: int) -> int:
        if number == 2:
            memory.silence(session)
            memory.advance(100)
            memory.silence(session, silent=False)
        return number

    with client, client.session(user_id="u", state=state, snapshots=True) as session:
        held = []
        for number in (1, 2, 3):
            slow(number)
            if memory.find_row(session).state == "Timeout":
                session.resume()
            session.update_state({**state, "number": number})
            session.snapshot()
            held.append(memory.find_row(session).snapshot)
    insert_memory(tables, memory)
    database = ClickHouseClient(tables)
    rows = database.fetch_rows(
        "SELECT snapshot_id, parent_snapshot_id, side, encoding FROM v_snapshots "
        f"WHERE session_id = '{session.session_id}' ORDER BY number"
    )
    assert [row["side"] for row in rows] == ["", *["before", "succeeded", ""] * 3, ""]
    ids = [row["snapshot_id"] for row in rows]
    assert [row["parent_snapshot_id"] for row in rows] == ["", *ids[:-1]]
    assert [row["encoding"] for row in rows].count("delta") > 5
    chain = read_chain(stored_snapshots(database, session.session_id), ids[-1])
    assert [each.snapshot_id for each in chain] == ids
    assert [json.loads(each.state_json)["number"] for each in chain] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert [each._replace(content_bytes=0) for each in chain[3::3]] == [each._replace(content_bytes=0) for each in held]


@pytest.mark.parametrize(("age_days", "classes"), [(29, ("personal",)), (360, ())])
def test_a_snapshot_of_long_ago_is_retrievable_and_compressed(
    tables: ClickHouseSettings, age_days: int, classes: Sequence[DataClass]
) -> None:
    """R-003-35, R-003-63: the stored form is compressed, and by how much is told."""
    aged, rng = AgedRows(tables), random.Random(age_days)
    begun_ms = int((time.time() - age_days * 86_400) * 1_000)
    client, memory = memory_client(memory=InMemoryTransport(1, now_ms=begun_ms))
    words = [rng.choice(("lag", "broker", "offset", "commit")) for _ in range(2_000)]
    with client, client.session(user_id="u", state={"words": words}, data_classes=classes) as session:
        session.snapshot(context=" ".join(words))
        last = memory.find_row(session).snapshot
    insert_memory(tables, memory)
    aged.let_retention_pass()
    stored = stored_snapshots(ClickHouseClient(tables), session.session_id)
    chain = read_chain(stored, last.snapshot_id)
    assert chain[-1]._replace(content_bytes=0) == last._replace(content_bytes=0)
    (ratio,) = aged.fetch_values(f"SELECT compression_ratio FROM v_snapshots WHERE snapshot_id = '{last.snapshot_id}'")
    assert ratio[0] > 3
    database = tables.clickhouse_database
    (on_disk,) = aged.fetch_values(
        "SELECT sum(data_uncompressed_bytes) / sum(data_compressed_bytes) FROM system.parts "
        f"WHERE database = '{database}' AND table = 'history' AND active"
    )
    assert on_disk[0] > 1


@pytest.mark.parametrize(("age_days", "is_kept"), [(29, True), (31, False)])
def test_no_snapshot_is_left_once_personal_data_has_expired(
    tables: ClickHouseSettings, age_days: int, is_kept: bool
) -> None:
    aged = AgedRows(tables)
    begun_ms = int((time.time() - age_days * 86_400) * 1_000)
    client, memory = memory_client(memory=InMemoryTransport(1, now_ms=begun_ms))
    with client, client.session(user_id="u", data_classes=("personal", "financial"), snapshots=True) as session:
        search_papers("a")
        session.pause("a break")
        session.resume()
    insert_memory(tables, memory)
    aged.let_retention_pass()
    assert aged.fetch_values("SELECT sum(payload_json != '') > 0 AS told, count() > 9 AS kept FROM history") == [
        (is_kept, True)
    ]
    taken = ["session_created", "snapshot_created", "snapshot_created", "session_paused", "session_terminated"]
    found = aged.fetch_values("SELECT event_type FROM v_snapshots ORDER BY number")
    assert found == [(event_type,) for event_type in taken if is_kept]


def test_the_sample_comes_back_without_a_loss(tables: ClickHouseSettings) -> None:
    """R-003-29, C-14: through Avro and ClickHouse."""
    agent = EventFactory("sample")
    sample = Snapshot(
        "snap_0123456789ab",
        None,
        1,
        "{}",
        None,
        "",
        "full",
        "none",
        "conv_12345",
        3,
        (SnapshotMessage("user", "a" * 64, 1_024), SnapshotMessage("assistant", "b" * 64, 1_024)),
        2_048,
        ToolExecution("call-1", "search_papers", '{"max_results":5,"query":"MCP"}', "success", '["paper"]', 1_250),
        (AccessedResource("file:///data/papers.db", 1_732_000_000_000_000, "read"),),
        {"server_version": "1.0.0", "protocol_version": "2024-11-05"},
    )
    sample = sample._replace(content_hash=snapshot_hash(sample))
    value = agent.event_bytes("session_created", snapshot=stored_snapshot(sample, None))
    event = Decoder().decode_event(value)
    assert isinstance(event, Event)
    assert isinstance(event.payload, SessionCreated)
    assert whole_snapshot(event.payload.snapshot, None) == sample
    insert_block(tables, "history", [(int(time.time() * 1_000_000) - 3_600_000_000, 0, value)], "sample")
    client = ClickHouseClient(tables)
    found = stored_snapshots(client, agent.key.session_id)[sample.snapshot_id]
    assert whole_snapshot(found, None) == sample
    row: dict[str, Any]
    (row,) = client.fetch_rows(f"SELECT * FROM v_snapshots WHERE session_id = '{agent.key.session_id}'")
    assert (row["turn"], row["total_tokens"], row["tool_name"]) == (3, 2_048, "search_papers")
    assert [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in row["resources"]] == [
        ("file:///data/papers.db", 1_732_000_000_000_000, "read")
    ]


def test_a_conversation_whose_context_grows_is_stored_in_a_fifth(tables: ClickHouseSettings) -> None:
    """R-003-65."""
    assert table_ratio(tables, hold_conversation(TURNS, 1, with_text=True)) <= RATIO_MAX
