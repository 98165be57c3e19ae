"""(y) The time in which `sessionary session drain` moves a service's idle sessions to another one.

Two real clients, in separate processes: one has the sessions, the other takes them. Broker,
processor, sinks and ClickHouse's engine are processes too, with their default settings, and so is
the command. The sessions are moved at the command's own rate, and then back at the highest one.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.sink_processes import start_sinks, stop_sinks
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.measurements.call_latency import judged_pipeline
from benchmarks.measurements.command_times import COMMAND
from benchmarks.measurements.latency import wait_file, warm_broker
from benchmarks.results import Result, Target, quantile
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support.reading import read_topic
from tests.support.waiting import wait_until

SESSIONS, SESSIONS_QUICK = 1_000, 30
SECONDS_MAX = 30.0
RATE_MAX = 1_000  # the largest one that the command takes
SOURCE, TARGET = "billing", "shipping"
STAGES = (
    "start of the command → first offer",
    "first offer → last offer",
    "last offer → last session moved",
    "last session moved → end of the command",
)
_SINKS = {name: name for name in ("audit", "history", "rejected")}
_OPERATOR = "token-of-ops"
_COMMAND_S = 300.0
_STOP_S = 20.0
_LANDED = "SELECT count() AS n FROM v_sessions WHERE service_id = {service:String} AND state = 'Active'"


class Drain(NamedTuple):
    """The outcome of one call of the command."""

    seconds: float  # of the whole process
    sessions: int
    stages: Sequence[float]  # s, in the order of `STAGES`
    moves: Sequence[float]  # per session, from its offer to its completion, s
    holds: Sequence[float]  # of it, from when the session was held, s


class _Operator:
    """Runs an operator's commands, and reads what they did from the log."""

    def __init__(self, stack: Stack, kafka: KafkaSettings, clickhouse: ClickHouseSettings, control_url: str) -> None:
        self._stack, self._kafka = stack, kafka
        self._env = environment(kafka, clickhouse, control_url=control_url, operator_token=_OPERATOR)
        self._client = ClickHouseClient(clickhouse)

    def wait_landed(self, service: str, sessions: int) -> None:
        """Wait until ClickHouse has the open sessions of a service."""

        def has_landed() -> bool:
            return bool(self._client.fetch_one(_LANDED, service=service)["n"] == sessions)

        wait_until(has_landed, _COMMAND_S, f"{sessions} sessions of {service} in ClickHouse", pause_s=0.2)

    def migrate(self, session_id: str, to: str) -> None:
        """Move one session. Raises `RuntimeError`."""
        self._run("session", "move", session_id, "--to", to, "--reason", "measured")

    def drain(self, source: str, to: str, *options: str) -> Drain:
        """Drain a service. Raises `RuntimeError` if a session stayed."""
        begun_s = time.time()
        report = self._run("session", "drain", source, "--to", to, *options)
        ended_s = time.time()
        steps = self._read_steps(to, begun_s)
        offered, completed = steps["offered"], steps["completed"]
        if len(completed) != report["moved"]:
            raise RuntimeError(f"{report['moved']} sessions moved, and the log has {len(completed)}")
        moments = (begun_s, min(offered.values()), max(offered.values()), max(completed.values()), ended_s)
        stages = [after - before for before, after in itertools.pairwise(moments)]
        moves = [completed[each] - offered[each] for each in completed]
        holds = [completed[each] - steps["prepared"][each] for each in completed]
        return Drain(ended_s - begun_s, report["moved"], stages, moves, holds)

    def _run(self, *words: str) -> dict[str, Any]:
        return self._stack.run_to_end([COMMAND, *words, "--json"], self._env, words[1], _COMMAND_S)

    def _read_steps(self, to: str, since_s: float) -> dict[str, dict[str, float]]:
        """Return when each migration came to a step, s since the epoch, by step and id."""
        found: dict[str, dict[str, float]] = {"offered": {}, "prepared": {}, "completed": {}}
        decoder = Decoder()
        for stored in read_topic(self._kafka, self._kafka.topics.audit):
            record, at_s = decoder.decode_record(stored.value), stored.timestamp_ms / 1e3
            if isinstance(record, AuditRecord) and record.to_service == to and at_s >= since_s:
                found.get(record.migration_step or "", {})[record.migration_id or ""] = at_s
        return found


def measure_drains(stack: Stack, bench: Bench, clickhouse: ClickHouseSettings, sessions: int) -> tuple[Drain, Drain]:
    """Move the sessions at the command's rate, and back at the highest one; into a database."""
    tokens = {_OPERATOR: {"tenant": "acme", "principal": "ops", "roles": ["reader", "operator"]}}
    with judged_pipeline(stack, tokens) as (kafka, fields):
        sinks = start_sinks(stack, kafka, clickhouse, _SINKS)
        operator = _Operator(stack, kafka, clickhouse, fields["control_url"])
        services = []
        try:
            for service, opened in ((TARGET, 0), (SOURCE, sessions)):
                ready = stack.folder / f"{kafka.topic_prefix}.{service}"
                words = (service, "--sessions", f"{opened}", "--ready", str(ready))
                env = environment(kafka, **fields)
                services.append(stack.start("benchmarks.programs.idling", *words, env=env, name=service))
                wait_file(stack, ready, *services)
            operator.wait_landed(SOURCE, sessions)
            for to in (TARGET, SOURCE):  # so that both have joined their groups
                operator.migrate(ready.read_text().split()[0], to)
            there = operator.drain(SOURCE, TARGET)
            operator.wait_landed(TARGET, sessions)
            back = operator.drain(TARGET, SOURCE, "--rate", f"{RATE_MAX}")
            stack.check_running(*services)
        finally:
            for service_process in services:
                service_process.stop(_STOP_S)
            stop_sinks(sinks.values())
    bench.print_progress(f"  {there.sessions} sessions in {there.seconds:.1f} s, and back in {back.seconds:.1f} s")
    return there, back


def drain_results(found: Sequence[tuple[Drain, Drain]]) -> list[Result]:
    """Return the figures of all runs."""
    there, back = [one for one, _ in found], [one for _, one in found]
    notes = (
        f"{there[0].sessions:,} sessions that are Active and only beat, of one process to another; the whole command, "
        "Python's start included, until ClickHouse has the last end; its stages by the broker's stamps on audits",
        f"at the command's default rate; then all of them back with --rate {RATE_MAX}",
    )
    results = [
        Result("drain", "s", [one.seconds for one in there], Target("<=", SECONDS_MAX), notes),
        Result("sessions moved per second", "sessions/s", [one.sessions / one.seconds for one in there]),
        *(Result(name, "s", [one.stages[place] for one in there]) for place, name in enumerate(STAGES)),
    ]
    for rate, runs in (("", there), (", highest rate", back)):
        for share in (0.5, 0.99):
            moves_ms, holds_ms = (
                [quantile(sorted(each), share) * 1e3 for each in times]
                for times in ([one.moves for one in runs], [one.holds for one in runs])
            )
            results.append(Result(f"offered → completed{rate}, p{share * 100:.0f}", "ms", moves_ms))
            results.append(Result(f"prepared → completed{rate}, p{share * 100:.0f}", "ms", holds_ms))
    moving_s = [sum(one.stages[1:3]) for one in back]
    return [
        *results,
        Result("drain, highest rate", "s", [one.seconds for one in back]),
        Result(
            "sessions moved per second, highest rate",
            "sessions/s",
            [one.sessions / moved_s for one, moved_s in zip(back, moving_s, strict=True)],
            notes=("highest rate: from the first offer to the last session moved",),
        ),
    ]


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    with running_stack(bench) as stack:
        if not bench.options.quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat(
            f"{sessions:,} sessions", lambda _: measure_drains(stack, bench, stack.new_database(), sessions)
        )
    return drain_results(found)
