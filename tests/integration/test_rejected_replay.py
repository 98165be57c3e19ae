"""`sessionary rejected replay` sends a rejected record again, and it fills the gap that it left."""

import json
from collections.abc import Callable

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.codec import Decoder, Event, encode_confluent
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support import read_topic
from tests.support.aged_rows import AgedRows
from tests.support.event_factory import EventFactory, payload_of
from tests.support.judged_rows import JudgedRows
from tests.support.pipelines import set_environment

Command = Callable[..., list[dict[str, str]]]


class LateRegistry:
    """A schema registry that the clients know, and the processors only once it `is_shared`."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.is_shared = False

    def get_schema(self, schema_id: int) -> str:
        if not self.is_shared:
            raise KeyError(schema_id)
        return self.schemas[schema_id]

    def register_schema(self, full_name: str, schema: str) -> int:
        self.schemas.append(schema)
        return len(self.schemas) - 1


@pytest.fixture
def command(
    tables: ClickHouseSettings,
    kafka: KafkaSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """Runs a command on both servers; returns its rows."""
    set_environment(monkeypatch, kafka, tables)

    def run_command(*words: str) -> list[dict[str, str]]:
        assert run([*words, "--json"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    return run_command


def test_a_replayed_record_fills_its_own_gap_once_its_schema_is_known(
    tables: ClickHouseSettings, kafka: KafkaSettings, command: Command
) -> None:
    registry, log, agent = LateRegistry(), JudgedRows(AgedRows(tables)), EventFactory()
    log.judge._states[0].decoder = Decoder(registry)
    log.start(agent)
    event = Event(agent.envelope("usage_recorded"), payload_of("usage_recorded"))
    key, value, missing = agent.key.encoded(), encode_confluent(event, registry), agent.seq
    assert log.append(key, value) == "unknown_schema"
    assert log.send(agent, "session_activity") == "applied"
    assert [(line.gap_first, line.gap_last) for line in log.judge.audits if line.kind == "gap"] == [(missing, missing)]
    log.land()

    (rejected,) = command("rejected", "list")
    log_position = rejected["log_position"]
    (sent,) = command("rejected", "replay", log_position)
    (stored,) = read_topic(kafka, kafka.topics.events)
    assert sent == {"replayed": log_position, "as": f"{stored.partition}:{stored.offset}"}
    assert (stored.key, stored.value) == (key, value)
    source = f"{log.judge.rejected_records[0].source_topic}:{log_position}"
    assert dict(stored.headers)["replayed_from"] == json.dumps(source).encode()

    def judge_again() -> tuple[str | None, str | None, list[tuple[str, int | None, int | None]]]:
        reported = len(log.judge.audits)
        _, rejection, duplicate = log.judge.judge_record(0, key, value, stored.headers)
        return (
            rejection,
            duplicate,
            [(line.kind, line.gap_first, line.gap_last) for line in log.judge.audits[reported:]],
        )

    assert judge_again()[0] == "unknown_schema"
    registry.is_shared = True
    assert judge_again() == (None, None, [("gap_filled", missing, missing)])
    rejection, duplicate, audits = judge_again()
    assert (rejection, duplicate is not None, audits) == (None, True, [])
