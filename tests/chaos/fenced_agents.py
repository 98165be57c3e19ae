"""Two agents of two services: one is frozen inside a tool call, the other takes its session over.

python -m tests.chaos.fenced_agents source|target FOLDER; addresses come from `SESSIONARY_*`
variables. They and the harness tell each other by files in FOLDER:

claim.json             of the harness: the session, and the calls of its order
source.json            how far the source is, what it tried after its freeze, and how it learned
target.json            the same of the target
claim, go, end         empty files of the harness: the target may claim; the source's call may go
                       on; the target may end the session
journal-<who>.ndjson   the clients' journals
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote

from examples.workflow.workflow import ask_service
from sessionary.producers import (
    ProducerError,
    ProducerSettings,
    Rejected,
    Session,
    SessionClient,
    SessionFenced,
    TookEffect,
    Unavailable,
    current_tool_key,
    tool,
)
from sessionary.schemas.types import Limits
from tests.chaos.schedule import AFTER_EFFECT, BEFORE_EFFECT

T = TypeVar("T")
SERVICES = {"source": "orders", "target": "backup"}
# A sixth of it is a heartbeat; another service may claim after two.
BUDGET_MS = 15_000
LIMITS = Limits(
    init_ms=40_000,
    model_ms=BUDGET_MS // 3,
    tool_ms=BUDGET_MS // 3,
    network_ms=BUDGET_MS // 3,
    idle_ms=900_000,
    attached_run_ms=None,
    max_duration_ms=None,
    grace_ms=300_000,
    hold_ms=None,
    recovery_ms=None,
    archive_delay_ms=1_000,
    release_limit_ms=4_000,
    context_limit_bytes=None,
    override=True,
)
_CALL_LIMIT_S = 2.0  # after that the processor calls the outcome unknown
_PATIENCE_S = 200.0
_PAUSE_S = 0.2


def write_file(path: Path, content: object) -> None:
    """Write JSON; readers see the old or the new file."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def wait_for(path: Path) -> None:
    """Wait until the harness has made a file. Raises `TimeoutError`."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no file {path.name} after {_PATIENCE_S:g} s")
        time.sleep(0.02)


def repeat_until_available(verb: Callable[[], T]) -> T:
    """Call a verb that may be repeated, until broker and control API answer.

    Raises what it raises.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return verb()
        except Unavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


class Agent:
    """What both agents have: the plan, a client, and a file in which they tell how far they are."""

    def __init__(self, who: str, folder: Path) -> None:
        self.plan: dict[str, str] = json.loads((folder / "claim.json").read_text())
        self.folder, self._file = folder, folder / f"{who}.json"
        self._reported: dict[str, Any] = {}
        self.fenced = threading.Event()
        self.client = SessionClient(
            tenant_id=self.plan["tenant_id"],
            service_id=SERVICES[who],
            agent_id=who,
            settings=ProducerSettings.from_env(
                spool_dir=folder / f"spool-{who}", journal_path=folder / f"journal-{who}.ndjson", handle_sigterm=False
            ),
            on_fenced=self._note_fenced,
        )
        self.place_order = tool(
            name="place_order",
            key=lambda: self.plan["key"],
            effect="write",
            query=self._find_order,
            deadline=_CALL_LIMIT_S,
            wait_s=_PATIENCE_S,
        )(self._place_order)

    def report(self, **findings: object) -> None:
        """Let the harness know."""
        self._reported |= findings
        write_file(self._file, self._reported)

    def before_effect(self) -> None:
        """Is called inside a call, before its effect."""

    def after_effect(self) -> None:
        """Is called inside a call, after its effect."""

    def _place_order(self) -> dict[str, Any]:
        self.before_effect()
        placed = ask_service(f"{self.plan['url']}/messages", {"order": self.plan["key"]}, current_tool_key())
        self.after_effect()
        return placed

    def _find_order(self, key: str) -> TookEffect | None:
        try:
            return TookEffect(ask_service(f"{self.plan['url']}/messages?key={quote(key)}"))
        except HTTPError as error:
            if error.code != 404:
                raise
            return None

    def _note_fenced(self, finding: SessionFenced) -> None:
        self.report(fenced_by=finding.holder)
        self.fenced.set()


class SourceAgent(Agent):
    """Owns the session, is frozen inside the call, and then goes on as if nothing had happened."""

    def run(self) -> None:
        session = repeat_until_available(
            lambda: self.client.open(
                self.plan["session_id"], user_id="u1", state={"by": "source", "step": 0}, limits=LIMITS
            )
        )
        repeat_until_available(session.sync)  # it then knows who holds the session
        session.update_state({"by": "source", "step": 1}, wait=False)
        session.snapshot()
        failures: dict[str, str] = {}
        for name, verb in (
            ("order", lambda: repeat_until_available(lambda: self._order(session))),
            ("update", lambda: session.update_state({"by": "source", "step": 2}, wait=False)),
            ("snapshot", session.snapshot),
            ("activity", lambda: session.activity("llm", "still at work")),
        ):
            try:
                verb()
            except ProducerError as error:
                failures[name] = repr(error)
        self.report(failures=failures)
        self.fenced.wait(_PATIENCE_S)
        with contextlib.suppress(SessionFenced):
            repeat_until_available(session.sync)
            self.report(failures={**failures, "sync": "raised no SessionFenced"})
        self.client.close()
        self.report(done=True)

    def before_effect(self) -> None:
        if self.plan["freeze"] == BEFORE_EFFECT:
            self._wait_in_call()

    def after_effect(self) -> None:
        if self.plan["freeze"] == AFTER_EFFECT:
            self._wait_in_call()

    def _order(self, session: Session) -> None:
        with session.run("order", run_id=self.plan["run_id"]) as run:
            run.result = repeat_until_available(self.place_order)

    def _wait_in_call(self) -> None:
        self.report(in_call=True)
        wait_for(self.folder / "go")


class TargetAgent(Agent):
    """Takes the session over, brings the call to its end, and changes the content."""

    def run(self) -> None:
        self.report(ready=True)
        wait_for(self.folder / "claim")
        session = self._claim()
        self.report(epoch=session.epoch, found=session.state)
        if session.local_state == "Timeout":
            repeat_until_available(session.resume)
        repeat_until_available(lambda: self._finish_order(session))
        session.update_state({"by": "target", "step": 2}, wait=False)
        session.snapshot()
        repeat_until_available(session.sync)
        self.report(finished=True)
        wait_for(self.folder / "end")
        session.update_state({"by": "target", "step": 3}, wait=False)
        repeat_until_available(session.sync)
        self.report(left=session.state, version=session.version)
        session.complete()
        self.client.close()
        self.report(done=True)

    def _claim(self) -> Session:
        """Claim the session until its owner was silent for long enough."""
        deadline_s, too_early = time.monotonic() + _PATIENCE_S, 0
        while True:
            try:
                return repeat_until_available(lambda: self.client.claim(self.plan["session_id"]))
            except Rejected as rejected:
                if rejected.reason != "owner_alive" or time.monotonic() > deadline_s:
                    raise
                too_early += 1
                self.report(too_early=too_early)
                time.sleep(_PAUSE_S)

    def _finish_order(self, session: Session) -> None:
        with session.resume_run(self.plan["run_id"]) as run:
            run.result = self.place_order()


def main(who: str, folder: str) -> None:
    """Be one of the two agents."""
    if who == "source":
        SourceAgent(who, Path(folder)).run()
    else:
        TargetAgent(who, Path(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
