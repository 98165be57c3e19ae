"""A worker that took a partition over answers for the records that another one judged."""

import json
import signal
from functools import partial

from sessionary.infra.local.ports import free_ports
from sessionary.schemas.events.session import SessionStarted
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, start_processor
from tests.integration.test_processor_api import documented, get
from tests.support import Processes, wait_until


def is_ready(port: int) -> bool:
    return get(f"http://127.0.0.1:{port}/readyz").status == 200


def test_a_killed_workers_verdicts_outlive_it(kafka: KafkaSettings, processes: Processes) -> None:
    sender, agent = Sender(kafka), Agent()
    unreadable = OutgoingRecord(agent.key.encoded(), b"\xc3\x01" + b"\x07" * 8 + b"newer schema")
    sender.send(*agent.start(), unreadable, agent.event(SessionStarted()), agent.work())
    places = sender.flush()

    def ask_verdicts(port: int) -> list[tuple[str, str | None] | int]:
        """Return the verdicts on all records, or the answers' statuses."""
        session = f"http://127.0.0.1:{port}/v1/sessions/{agent.key.session_id}"
        answers = [get(f"{session}?after={partition}:{offset}") for partition, offset in places]
        assert all(answer.status == 0 or documented(answer) for answer in answers)
        verdicts = [answer.body["verdict"] if answer.status == 200 else None for answer in answers]
        return [
            (verdict["outcome"], verdict["reason"]) if verdict else answer.status
            for verdict, answer in zip(verdicts, answers, strict=True)
        ]

    def ask_known(port: int) -> list[tuple[str, str | None] | int] | None:
        """Return the verdicts once the worker is not behind: until then it asks for a later try."""
        found = ask_verdicts(port)
        return None if {0, 503} & set(found) else found

    expected = [
        *[("applied", None)] * 4,
        ("rejected", "unknown_schema"),
        ("rejected", "illegal_transition"),
        ("applied", None),
    ]
    for port in free_ports(2):
        worker = start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=json.dumps({"token-a": "acme"}))
        wait_until(partial(is_ready, port), 30, "the worker to be ready")
        reported = wait_until(partial(ask_known, port), 120, "a verdict on each record")
        assert reported == expected
        worker.signal(signal.SIGKILL)
        assert worker.wait(180)
