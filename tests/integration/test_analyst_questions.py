"""The fifteen questions of `docs/clickhouse.md`, asked of the rows that judged events leave.

Each answer is computed a second time, from the events that were sent.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from docs.build.clickhouse_page import PAGE
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import ErrorInfo
from sessionary.sinks.core.sink_kinds import SinkKind
from sessionary.stream_processors.core.model import LogRecord
from tests.core.fold_rig import FoldRig
from tests.support.clickhouse_rows import insert_block
from tests.support.event_factory import TICK, EventFactory
from tests.support.pipelines import run_sql
from tests.support.sink_records import NOW_US, session_id

_KINDS: Final[Mapping[str, SinkKind]] = {
    "sessionary.audit": "audit",
    "sessionary.rejected": "rejected",
    "sessionary.batches": "batches",
}
_ACKNOWLEDGED_MS: Final = 40


def questions() -> dict[str, str]:
    """Return the page's SELECTs by the sentences that ask for them."""
    section = PAGE.read_text("utf-8").partition("## Fifteen questions of analysts\n")[2].partition("\n## ")[0]
    return {
        text.split("?")[0]: sql for text, sql in re.findall(r"\n\n(\S[^\n]*)\n\n```sql\n(.*?)```", section, re.DOTALL)
    }


class World:
    """Sessions of two tenants, judged as the processor does; what was sent is kept beside it."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self.clickhouse, self.rig = clickhouse, FoldRig()
        self.rig.at = NOW_US // 1_000
        self.records: dict[SinkKind, list[tuple[int, int, bytes]]] = defaultdict(list)
        self.usages: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.sent: dict[str, list[tuple[str, str]]] = defaultdict(list)  # type and name by session
        self.refused: Counter[tuple[str, str]] = Counter()
        self.turns: Counter[str] = Counter()
        self.people: dict[str, dict[str, str]] = {}  # user and agent by session
        self.handed_at: list[int] = []
        self.transitions = self.duplicates = self.taken_at = 0

    def send(self, agent: EventFactory, event_type: str, envelope: Mapping[str, Any] = {}, **fields: Any) -> str:
        """Judge an event a second after the last one, and return what came of it."""
        row = self.rig.fold.rows.get(agent.key.encoded())
        if row is not None and "epoch" not in envelope:
            agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
        value = agent.event_bytes(event_type, {**self.people[agent.key.session_id], **envelope}, **fields)
        outcome = self.append(agent.key.encoded(), value)
        name = fields.get("tool_name") or fields.get("role") or ""
        self.sent[agent.key.session_id].append((event_type, name))
        if event_type == "context_synced":
            self.handed_at.append(self.rig.at)
        if outcome.startswith("rejected"):
            self.refused[agent.service, outcome.split()[1]] += 1
        return outcome

    def deliver_again(self, agent: EventFactory) -> None:
        """Let the log have the last event twice, with another one in the same transaction."""
        key, again = agent.key.encoded(), self.records["history"][-1][2]
        more = agent.event_bytes("session_activity", self.people[agent.key.session_id], kind="llm")
        records = [LogRecord(self.rig.offset + n, self.rig.at, key, value, ()) for n, value in enumerate((again, more))]
        self.rig.append_batch(*records)
        self.records["history"] += [
            (record.timestamp_ms * 1_000, record.offset, record.value or b"") for record in records
        ]
        self.sent[agent.key.session_id] += [self.sent[agent.key.session_id][-1], ("session_activity", "")]
        self.duplicates += 1
        self._keep_written()

    def append(self, key: bytes | None, value: bytes) -> str:
        self.rig.at += 1_000
        self.records["history"].append((self.rig.at * 1_000, self.rig.offset, value))
        outcome = self.rig.append(key, value)
        self._keep_written()
        return outcome

    def _keep_written(self) -> None:
        self.transitions += sum(audit.kind == "transition" for audit in self.rig.audits())
        for topic, _, written, _ in self.rig.written:
            if topic in _KINDS and written is not None:
                found = self.records[_KINDS[topic]]
                if topic == "sessionary.batches":  # the rig has no clock of a worker
                    record = Decoder().decode_record(written)
                    assert isinstance(record, BatchRecord)
                    written = encode_record(record._replace(started_at=self.rig.at * 1_000))
                found.append((self.rig.at * 1_000, len(found), written))

    def start(self, agent: EventFactory, user: str = "u1", agent_id: str = "agent-1") -> None:
        self.people[agent.key.session_id] = {"user_id": user, "agent_id": agent_id}
        steps: tuple[tuple[str, dict[str, Any]], ...] = (
            ("session_created", {}),
            ("session_phase_changed", {"phase": "validating"}),
            ("session_phase_changed", {"phase": "connecting"}),
            ("session_started", {}),
        )
        for event_type, fields in steps:
            assert self.send(agent, event_type, **fields) == "applied"

    def use(self, agent: EventFactory, model: str, tokens: int, nanos: int, *, retry: bool = False) -> None:
        paid: dict[str, Any] = {
            "model": model,
            "tokens_in": tokens,
            "tokens_out": tokens // 10,
            "model_cost_usd_nanos": nanos,
        }
        more: dict[str, Any] = {"tool_cost_usd_nanos": 0, "is_timeout_retry": retry, "retry_of": None}
        assert self.send(agent, "usage_recorded", **paid, **more) == "applied"
        by = {"tenant": agent.key.tenant_id, "agent": self.people[agent.key.session_id]["agent_id"], "retry": retry}
        self.usages.append({**by, **paid})

    def call(
        self, agent: EventFactory, tool: str, took_ms: int, error: ErrorInfo | None = None, *, key: str = ""
    ) -> None:
        """Report a call; with a key it is reserved, and succeeds at its second try."""
        name = f"call-{len(self.calls)}"
        for number in (1, 2) if key else (1,):
            same: dict[str, Any] = {
                "tool_call_id": name,
                "tool_name": tool,
                "idem_key": key or name,
                "try_number": number,
            }
            how: dict[str, Any] = {"args_json": "{}", "side_effect": False, "queryable": False}
            assert self.send(agent, "tool_call_started", **same, **how) == "applied"
            failed = error or (ErrorInfo("retryable", "busy", "busy") if key and number == 1 else None)
            if failed is not None:
                ended = self.send(agent, "tool_call_failed", **same, error=failed, execution_time_ms=took_ms)
            else:
                result: dict[str, Any] = {"result_json": "1", "artifact_id": None, "execution_time_ms": took_ms}
                ended = self.send(agent, "tool_call_succeeded", **same, **result)
            assert ended == "applied"
        self.calls.append({"tool": tool, "took_s": took_ms / 1e3, "error": error, "tries": number})

    def say(self, agent: EventFactory, *roles: str) -> None:
        for role in roles:
            said: dict[str, Any] = {"role": role, "content": "a text", "artifact_id": None, "name": None}
            assert self.send(agent, "message_appended", **said) == "applied"
            self.turns[agent.key.session_id] += 1

    def insert(self) -> None:
        for kind, records in self.records.items():
            insert_block(self.clickhouse, kind, records, f"world {kind}")
        # Kafka acknowledged each transaction some time after its record.
        begun = "SELECT batch_number, max(appended_at) AS appended_at FROM {db}.audit FINAL GROUP BY batch_number"
        run_sql(
            self.clickhouse,
            "INSERT INTO {db}.batch_acknowledgements (partition, number, acknowledged_at) "
            f"SELECT 0, batch_number, appended_at + INTERVAL {_ACKNOWLEDGED_MS} MILLISECOND FROM ({begun})".replace(
                "{db}", self.clickhouse.clickhouse_database
            ),
        )


def agent_of(number: int, tenant: str = "acme", service: str = "billing") -> EventFactory:
    agent = EventFactory(tenant=tenant, service=service)
    agent.key = SessionKey(tenant, session_id(number))
    return agent


@pytest.fixture
def world(tables: ClickHouseSettings) -> World:
    """Five sessions: completed, failed, timed out, cancelled and open."""
    world = World(tables)
    done = agent_of(1)
    world.start(done)
    world.say(done, "user")
    world.use(done, "large", 1_000, 9_000)
    world.use(done, "large", 1_000, 9_000, retry=True)
    world.call(done, "search", 820)
    world.call(done, "search", 40, ErrorInfo("retryable", "http_503", "busy"))
    world.call(done, "book", 1_500, key="order-7")
    world.say(done, "assistant")
    world.deliver_again(done)
    assert world.send(done, "session_terminated", reason="completed") == "applied"

    lost = agent_of(2, service="search")
    world.start(lost, "u2", "agent-2")
    world.use(lost, "small", 500, 700)
    world.call(lost, "search", 60, ErrorInfo("fatal", "ValueError", "bad"))
    assert world.send(lost, "session_activity", {"epoch": 9}) == "rejected future_epoch"
    assert world.send(lost, "session_terminated", reason="abnormal_termination") == "applied"

    left = agent_of(3, tenant="globex")
    world.start(left)
    world.use(left, "small", 300, 300)
    assert world.send(left, "session_paused") == "applied"
    assert world.send(left, "session_resumed") == "applied"
    while world.rig.row_of(left).state == "Active":
        world.append(None, TICK)

    gone = agent_of(4)
    world.start(gone)
    assert world.send(gone, "session_terminated", reason="cancelled") == "applied"

    team = agent_of(5)
    world.start(team)
    for name in ("writer", "critic"):
        named: dict[str, Any] = {"role": name, "agent_id": name, "service_id": None, "as_operator": False}
        assert world.send(team, "agent_registered", **named) == "applied"
    given: dict[str, Any] = {
        "from_agent_id": "writer",
        "to_agent_id": "critic",
        "sync_type": "handoff",
        "shared_json": None,
    }
    assert world.send(team, "context_synced", **given) == "applied"
    world.say(team, "user", "assistant", "user")
    assert world.send(team, "agent_task_updated", agent_id="critic", task="judge") == "applied"
    world.taken_at = world.rig.at
    assert world.send(team, "context_synced", **given) == "applied"  # not taken yet
    world.insert()
    return world


def total(rows: list[dict[str, Any]], by: tuple[str, ...], *fields: str) -> list[tuple[Any, ...]]:
    """Return the sums of fields by the values of others, sorted."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        found = sums.setdefault(tuple(row[name] for name in by), [0] * len(fields))
        found[:] = [old + row[name] for old, name in zip(found, fields, strict=True)]
    return sorted((*key, *values) for key, values in sums.items())


def test_each_of_the_fifteen_questions_is_one_select_whose_answer_is_what_was_sent(world: World) -> None:
    client = ClickHouseClient(world.clickhouse)
    asked = questions()
    assert len(asked) == 15
    answers: dict[str, list[Row]] = {question: client.fetch_rows(sql) for question, sql in asked.items()}
    values = {question: [tuple(row.values()) for row in rows] for question, rows in answers.items()}
    day = datetime.fromtimestamp(NOW_US / 1e6, UTC).date().isoformat()
    usages = [{**usage, "day": day} for usage in world.usages]
    retries = [{**usage, "one": 1} for usage in usages if usage["retry"]]
    failed = [call for call in world.calls if call["error"] is not None]
    slow = {tool: [call["took_s"] for call in world.calls if call["tool"] == tool] for tool in ("book", "search")}
    expected = {
        "What did each model cost, per tenant and day": total(
            usages, ("day", "tenant", "model"), "model_cost_usd_nanos"
        ),
        "Which tools are the slowest": sorted(
            ((tool, len(times), max(times)) for tool, times in slow.items()), key=lambda row: -row[2]
        ),
        "Why did sessions time out, per hour": [("inactive", 1)],
        "How long are records kept, by which rule": [("gdpr_retention", sum(map(len, world.sent.values())))],
        "How long did hand-overs wait for the agent that took them": [
            ("writer", "critic", (world.taken_at - world.handed_at[0]) / 1e3),
            ("writer", "critic", None),
        ],
        "What happened in a session": [*world.sent[session_id(1)]],
        "Which sessions does a user have": [
            (session_id(1), "completed", 18_000),
            (session_id(4), "cancelled", 0),
            (session_id(5), "open", 0),
        ],
        "Which events were refused, per service": [(*key, n) for key, n in sorted(world.refused.items())],
        "What did retries after a timeout cost": total(retries, ("tenant",), "one", "model_cost_usd_nanos"),
        "Which share of ended sessions was completed": [("acme", 3, pytest.approx(1 / 3))],
        "How long does a transition take until it is durable": [(world.transitions, _ACKNOWLEDGED_MS)],
        "How many deliveries were duplicates": [(world.duplicates,)],
        "How many tokens did each agent use": total(usages, ("agent",), "tokens_in", "tokens_out"),
        "Which tools failed, by class of error": sorted(
            (call["tool"], call["error"].error_class, call["error"].code, 1) for call in failed
        ),
        "How long are conversations": sorted(world.turns.items(), key=lambda item: (-item[1], item[0])),
    }
    # What is not compared: a quantile of few values, a duration, a day.
    left_out = {
        "Which tools are the slowest": (2,),
        "Which sessions does a user have": (2,),
        "Why did sessions time out, per hour": (0,),
        "How long are records kept, by which rule": (2,),
        "What happened in a session": (2, 3, 4),
    }
    for question, places in left_out.items():
        values[question] = [tuple(cell for n, cell in enumerate(row) if n not in places) for row in values[question]]
    assert values == expected


def test_a_sessions_row_has_its_outcome_its_cost_and_its_durations(world: World) -> None:
    client = ClickHouseClient(world.clickhouse)
    columns = "session_id, state, outcome, reason_code, active_s, paused_s, turns"
    found = [tuple(row.values()) for row in client.fetch_rows(f"SELECT {columns} FROM v_sessions ORDER BY session_id")]
    states = [(row[1:4], row[6]) for row in found]
    assert states == [
        (("Terminated", "completed", "completed"), 2),
        (("Terminated", "failed", "abnormal_termination"), 0),
        (("Timeout", "open", "inactive"), 0),
        (("Terminated", "cancelled", "cancelled"), 0),
        (("Active", "open", "started"), 3),
    ]
    # Each record of a session is a second after the one before it.
    assert [row[5] for row in found] == [0, 0, 1, 0, 0]
    assert found[3][4] == 1
    sums = "calls, tokens_in, tokens_out, model_cost_usd_nanos, tool_cost_usd_nanos"
    paid = client.fetch_rows(f"SELECT session_id, {sums} FROM v_sessions WHERE calls > 0 ORDER BY session_id")
    summed = ", ".join(f"sum({name}) AS {name}" for name in sums.split(", "))
    assert paid == client.fetch_rows(f"SELECT session_id, {summed} FROM v_usage_by GROUP BY ALL ORDER BY session_id")
    assert len(paid) == 3


def test_all_tool_calls_are_rows_with_their_durations_and_the_reserved_ones_have_a_view_of_their_own(
    world: World,
) -> None:
    client = ClickHouseClient(world.clickhouse)
    columns = "tool_name, state, try, failed_tries, duration_s, error_class, is_reserved"
    rows = client.fetch_rows(f"SELECT {columns} FROM v_tool_calls ORDER BY started_at")
    assert [tuple(row.values()) for row in rows] == [
        (
            call["tool"],
            "failed" if call["error"] else "succeeded",
            call["tries"],
            1 if call["error"] or call["tries"] > 1 else 0,
            call["took_s"],
            call["error"].error_class if call["error"] else "",
            call["tries"] > 1,
        )
        for call in world.calls
    ]
    assert client.fetch_rows("SELECT tool_name, try FROM v_reserved_calls") == [{"tool_name": "book", "try": 2}]
