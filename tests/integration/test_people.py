"""People step in while an agent works: by the command, two processors and a real broker."""

import json
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.producers import Answer, Rejected, Session, SessionClient, SessionFenced, SessionGoesOn, SessionHeld
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN, PipelineRig
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until

OPERATOR = "token-of-ops"
TOKENS = {TOKEN: TENANT, OPERATOR: {"tenant": TENANT, "principal": "alice", "roles": ["reader", "operator"]}}


class PeopleRig:
    """Two processors; commands ask them in turn."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path) -> None:
        self.kafka, self._folder = kafka, folder
        self._pipeline = PipelineRig(kafka, None, processes)
        second = free_port()
        self._urls = [self._pipeline.control_url, f"http://127.0.0.1:{second}"]
        tokens = json.dumps(TOKENS)
        self._pipeline.start_processor(api_tokens=tokens)
        self._pipeline.start_processor(api_tokens=tokens, instance="w2", api_port=str(second))
        self.reported: list[Any] = []
        wait_until(self._share_partitions, 180, "both processors to own partitions")

    def _share_partitions(self) -> bool:
        owned: list[str] = []
        for url in self._urls:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
                    found: dict[str, str] = json.load(answer)["partitions"]
            except OSError:
                return False
            if not found or {*found.values()} != {"open"}:
                return False
            owned += found
        return sorted(map(int, owned)) == [*range(self.kafka.partitions)]

    def client(self, name: str = "agent", service_id: str = "billing") -> SessionClient:
        settings = self._pipeline.client_settings(self._folder, name).model_copy(update={"poll_interval_s": 0.2})
        keep = self.reported.append
        return SessionClient(
            tenant_id=TENANT,
            service_id=service_id,
            agent_id=name,
            settings=settings,
            on_error=keep,
            on_rejected=keep,
            on_fenced=keep,
            on_paused=keep,
            on_resumed=keep,
        )

    def run(self, *arguments: str, code: int = 0) -> list[Any]:
        """Run a command; return the JSON lines that it prints."""
        self._urls.reverse()
        env = environment(self.kafka, control_url=self._urls[0], operator_token=OPERATOR)
        done = subprocess.run(
            [COMMAND, *arguments, "--json"], env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def act(self, action: str, session: Session, *more: str, code: int = 0) -> Any:
        return self.run(*action.split(), session.session_id, "--tenant", TENANT, *more, code=code)

    def wait_reported(self, kind: type) -> Any:
        wait_until(
            lambda: any(isinstance(each, kind) for each in self.reported), 60, f"the client to be reported {kind}"
        )
        return next(each for each in self.reported if isinstance(each, kind))

    def audits(self, session: Session, kind: str) -> list[AuditRecord]:
        found = [each for each in read_records(self.kafka, self.kafka.topics.audit) if isinstance(each, AuditRecord)]
        mine = [each for each in found if each.session_id == session.session_id and each.kind == kind]
        return sorted(mine, key=lambda each: each.audit_seq)

    def transitions(self, session: Session) -> list[tuple[str | None, str, str | None]]:
        return [(each.transition, each.reason_code, each.actor) for each in self.audits(session, "transition")]


def test_an_agent_is_held_and_goes_on_and_its_questions_are_answered(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = PeopleRig(kafka, processes, tmp_path)
    limits = Limits(model_ms=60_000, tool_ms=60_000, network_ms=60_000, override=True)
    with rig.client() as client, client.session(user_id="u", state={"n": 1}, limits=limits) as session:
        session.update_state({"n": 2})
        session.sync()
        [paused] = rig.act("session pause", session, "--reason", "look at it")
        assert (paused["state"], paused["version"]) == ("Paused", 2)
        rig.wait_reported(SessionHeld)
        with pytest.raises(Rejected, match="operator_only: alice holds the session until"):
            session.resume()
        [again] = rig.act("session pause", session, "--reason", "again", "--hold", "1800")
        assert (again["state"], again["epoch"]) == ("Paused", 1)
        [resumed] = rig.act("session resume", session, "--reason", "go on")
        assert (resumed["state"], resumed["epoch"]) == ("Active", 2)
        assert rig.wait_reported(SessionGoesOn).epoch == 2
        assert session.update_state({"n": 3}) == 3
        assert session.sync().holder == client.producer_id

        approved = ask_while(session, "Deploy?", 600, lambda: answer_open(rig, session, "question approve"))
        assert approved == Answer(approved.question_id, True, "approved", "alice", "because")
        denied = ask_while(session, "Pay?", 600, lambda: answer_open(rig, session, "question deny"))
        assert (denied.approved, denied.reason_code) == (False, "denied")
        expired = session.ask("Anyone?", deadline=1.0)
        assert (expired.approved, expired.reason_code, expired.by) == (False, "expired", "")
        assert session.epoch == 5
        session.update_state({"n": 4})
        session.complete()
        session.sync()
    assert not [each for each in rig.reported if isinstance(each, SessionFenced)]
    assert rig.transitions(session)[2:] == [
        ("T04", "manual", "alice"),
        ("T04", "manual", "alice"),
        ("T05", "resumed", "alice"),
        ("T04", "review", None),
        ("T05", "approved", "alice"),
        ("T04", "review", None),
        ("T05", "denied", "alice"),
        ("T04", "review", None),
        ("T05", "expired", None),
        ("T13", "completed", None),
    ]


def test_an_operator_claims_a_session_for_another_service_while_its_owner_lives(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = PeopleRig(kafka, processes, tmp_path)
    limits = Limits(model_ms=60_000, tool_ms=60_000, network_ms=60_000, override=True)
    with rig.client() as owner, rig.client("other", "shipping") as shipping:
        session = owner.session(user_id="u", state={"n": 1}, limits=limits)
        session.sync()
        with pytest.raises(Rejected, match="owner_alive"):
            shipping.claim(session.session_id)
        [claimed] = rig.act("session claim", session, "--for", "shipping", "--reason", "billing sends nonsense")
        assert (claimed["owner_service"], claimed["state"], claimed["epoch"]) == ("shipping", "Active", 2)
        assert rig.wait_reported(SessionFenced).session_id == session.session_id
        taken = shipping.claim(session.session_id)
        assert (taken.epoch, taken.state) == (3, {"n": 1})
        assert taken.update_state({"n": 2}) == 2
        assert taken.sync().owner_service == "shipping"
        with pytest.raises(SessionFenced, match="belongs to the service shipping"):
            session.activity("still here")
        [cancelled] = rig.act("session cancel", session, "--reason", "wrong customer")
        assert (cancelled["state"], cancelled["reason_code"]) == ("Terminated", "cancelled")
        wait_until(lambda: taken.lost, 60, "the new owner to be reported")
        rig.act("session claim", session, "--for", "billing", "--reason", "again", code=5)
    reported = [(each.owner_service, each.epoch, each.actor) for each in rig.audits(session, "take_over")]
    assert reported == [("shipping", 2, "alice"), ("shipping", 3, None)]
    assert rig.transitions(session)[-1] == ("T13", "cancelled", "alice")
    rejected = [each.reason_code for each in rig.audits(session, "rejection")]
    assert rejected == ["owner_alive", "illegal_transition"]


def ask_while(session: Session, question: str, deadline_s: float, answer: Callable[[], None]) -> Answer:
    """Ask in a thread of its own, as an agent does, and let a person answer."""
    found: list[Answer] = []
    asking = threading.Thread(target=lambda: found.append(session.ask(question, deadline_s)))
    asking.start()
    try:
        answer()
    finally:
        asking.join(120)
    return found[0]


def answer_open(rig: PeopleRig, session: Session, action: str) -> None:
    """Answer the question once it is listed, whichever worker is asked."""
    listed: list[Any] = []

    def is_listed() -> bool:
        listed[:] = [row for row in rig.run("question", "list") if row["session_id"] == session.session_id]
        return bool(listed)

    wait_until(is_listed, 120, "the question to be listed")
    assert listed[0]["owner_service"] == "billing"
    rig.act(action, session, "--reason", "because", "--question", listed[0]["question_id"])
