"""The beats of a run, as the question of the document for analysts finds them in ClickHouse."""

import re

from docs.build.clickhouse_page import PAGE
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import encode_event
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import Runs
from tests.support.clickhouse_rows import insert_block
from tests.support.sink_records import session_id


def question_of(session: str, run: str) -> str:
    """Return the document's question about the beats of a run."""
    questions = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (question,) = (each for each in questions if "elapsed_s" in each)
    return str(question).replace(session_id(3), session).replace("'r2'", f"'{run}'")


def test_the_beats_of_a_run_are_reported_in_order_with_the_time_that_it_took_and_none_after_its_end(
    tables: ClickHouseSettings,
) -> None:
    """What is sent in a silent minute lands in another order, and one beat twice."""
    runs, memory = Runs(tables), InMemoryTransport(partitions=1)
    client, _ = memory_client(memory=memory)
    with client, client.session(user_id="u") as session:
        with session.run("train") as run:
            memory.advance(60.04)
        with session.run("another"):
            memory.advance(10)
    beats = [event for event in memory.heartbeats() if event.envelope.run_id == run.run_id]
    events = sorted([*memory.events(), *memory.heartbeats()], key=lambda event: event.envelope.occurred_at)
    events.append(beats[-1])  # a former owner's: it is rejected

    def land(offset: int, token: str) -> None:
        record = (runs.at_us(offset), offset, encode_event(events[offset]))
        insert_block(tables, "history", [record], token)

    for offset in reversed(range(len(events))):
        land(offset, f"event {offset}")
    land(events.index(beats[3]), "again")
    runs.reject(len(events) - 1, "stale_epoch")

    question = question_of(session.session_id, run.run_id)
    found = runs.ask(question)
    assert [elapsed_s for _, _, elapsed_s in found] == [5.0 * number for number in range(1, 13)]
    assert {run_id for _, run_id, _ in found} == {run.run_id}
    within = "countIf(b.appended_at BETWEEN r.created_at AND r.finished_at) AS n"
    assert runs.ask(f"SELECT {within} FROM ({question}) AS b, v_runs AS r WHERE r.run_id = '{run.run_id}'") == [(12,)]
