"""An agent process: plays agent runs with the real client until `--until`, then waits for SIGTERM.

<folder>/plan-<n>.json         the plan of its n-th life, written before it begins
<folder>/status.json           its progress
<folder>/journal-*.ndjson      the clients' journals
<folder>/spool/                the clients' spool; the next life takes it over
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from sessionary.infra.demo.plan import SILENT, Action, Plan, PlannedSession, make_plan
from sessionary.infra.demo.plan_runner import PlanRunner
from sessionary.infra.demo.runs import Run, sample_runs
from sessionary.producers import ProducerSettings
from sessionary.schemas.types import DataClass, Limits
from tests.chaos.background_sessions import BackgroundSessions, session_ids
from tests.chaos.small_disk import simulate_full_disk

_SPEED = 30.0
_EVENTS_PER_RUN = 58
_TOKENS_SHARE = 16  # of a recorded call's tokens: the volume is not tested here
_STATUS_S = 0.5
_BACKGROUND_SHARE = 0.5  # of the rate
_HEARTBEAT_SESSIONS = 3
_DATA_CLASSES: tuple[DataClass, ...] = ("personal",)


def limits(*, brief: bool) -> Limits:
    """Return limits: `brief` for sessions that fall silent; others survive every outage."""
    return Limits(
        init_ms=4_000 if brief else 40_000,
        model_ms=1_500 if brief else 10_000,
        tool_ms=1_000 if brief else 6_000,
        network_ms=500 if brief else 6_000,
        idle_ms=900_000,
        attached_run_ms=None,
        max_duration_ms=None,
        grace_ms=3_000,
        hold_ms=20_000,
        recovery_ms=20_000,
        archive_delay_ms=1_000,
        release_limit_ms=4_000,
        context_limit_bytes=None,
        override=True,
    )


def _runs(rate: float, seconds: float, rng: random.Random) -> list[Run]:
    """Return as many runs as give the rate, with evenly spread starts."""
    count = max(int(rate * seconds / _EVENTS_PER_RUN), 1)
    chosen = [rng.choice(sample_runs(60)) for _ in range(count)]
    return [run._replace(start_offset_s=n * seconds / count * _SPEED) for n, run in enumerate(chosen)]


def _heartbeat_session(session: PlannedSession, name: str, seconds: float) -> PlannedSession:
    """Return a session that only sends heartbeats until the end."""
    actions = (Action(0.0, "create"), Action(0.1, "start"), Action(max(seconds, 0.2), "complete"))
    return session._replace(session_id=name, outcome="completed", actions=actions, limits=limits(brief=False))


def plan_life(name: str, life: int, options: argparse.Namespace) -> Plan:
    """Return the plan of this life; it depends on the seed, the name and the remaining time."""
    rng = random.Random(f"{options.seed}:{name}:{life}")
    seconds = max(options.until - time.time(), 1.0)
    demo_id = f"{options.seed}:{name}:{life}"
    made = make_plan(
        _runs(options.rate * (1 - _BACKGROUND_SHARE), seconds, rng),
        demo_id=demo_id,
        seed=rng.randrange(1 << 30),
        speed=_SPEED,
        gap_s_max=1e9,
    )

    def own(session: PlannedSession) -> PlannedSession:
        actions = [
            action._replace(tokens_in=action.tokens_in // _TOKENS_SHARE, tokens_out=action.tokens_out // _TOKENS_SHARE)
            for action in session.actions
        ]
        return session._replace(
            tenant_id=options.tenant,
            service_id=options.service,
            data_classes=_DATA_CLASSES,
            limits=limits(brief=session.outcome in SILENT),
            actions=tuple(actions),
        )

    sessions = [own(session) for session in made.sessions]
    ids = (_as_uuid(rng) for _ in range(_HEARTBEAT_SESSIONS))
    sessions += [_heartbeat_session(sessions[0], session_id, seconds) for session_id in ids]
    return made._replace(sessions=tuple(sessions))


def _as_uuid(rng: random.Random) -> str:
    text = f"{rng.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


def _write(path: Path, content: object) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def _may_fall_silent(session: PlannedSession) -> bool:
    """Return True if heartbeats may stop before the session ends.

    Some sessions plan it; others are given up if a verdict or an acknowledgement does not come.
    """
    return session.silent or any(action.verb in ("resume", "recover", "broken") for action in session.actions)


def _write_plan(folder: Path, name: str, life: int, plan: Plan, background_ids: list[str]) -> None:
    sessions = [
        {"agent": name, "session_id": one.session_id, "silent": _may_fall_silent(one), "outcome": one.outcome}
        for one in plan.sessions
    ]
    sessions += [{"agent": name, "session_id": one, "silent": False, "outcome": "background"} for one in background_ids]
    _write(folder / f"plan-{life}.json", {"planned_ms": time.time_ns() // 1_000_000, "sessions": sessions})


def _report_status(
    runner: PlanRunner, background: BackgroundSessions, folder: Path, stop: threading.Event, done: threading.Event
) -> None:
    """Write the status file repeatedly until `stop` is set."""
    while not stop.wait(_STATUS_S):
        counts = runner.counts
        open_ = (
            counts.sent - counts.delivered - counts.dropped - counts.failed
        )  # below 0 if another process's spool was replayed
        status = {
            "pid": os.getpid(),
            "done": done.is_set() and background.done.is_set(),
            "outstanding": max(open_, 0) + background.outstanding,
            "dropped": counts.dropped + background.dropped,
        }
        _write(folder / "status.json", status)


def run(options: argparse.Namespace) -> None:
    """Live one life."""
    name, folder = options.name, Path(options.folder)
    life = len(list(folder.glob("plan-*.json")))
    plan = plan_life(name, life, options)
    rate = options.rate * _BACKGROUND_SHARE
    background_ids = session_ids(f"chat:{options.seed}:{name}:{life}", rate, max(options.until - time.time(), 0.0))
    _write_plan(folder, name, life, plan, background_ids)
    stop, done = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    tokens = {tenant: token for token, tenant in json.loads(os.environ["SESSIONARY_API_TOKENS"]).items()}

    def trouble(text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    with PlanRunner(plan, os.environ, tokens, folder, trouble) as runner:
        settings = ProducerSettings.from_env(
            api_token=tokens[options.tenant], spool_dir=folder / "spool", handle_sigterm=False
        )
        background = BackgroundSessions(
            settings, options.tenant, options.service, folder / "journal-background.ndjson", limits(brief=False)
        )
        threads = [
            threading.Thread(target=background.run, args=(background_ids, rate, options.until)),
            threading.Thread(target=_report_status, args=(runner, background, folder, stop, done)),
        ]
        for thread in threads:
            thread.start()
        runner.run_plan(lambda _text: None)
        done.set()
        stop.wait()
        for thread in threads:
            thread.join()
        background.close()


def main() -> None:
    """`python -m tests.chaos.agent`; addresses come from `SESSIONARY_*` variables."""
    parser = argparse.ArgumentParser()
    for name in ("name", "folder", "tenant", "service"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--until", type=float, required=True)
    simulate_full_disk()
    run(parser.parse_args())


if __name__ == "__main__":
    main()
