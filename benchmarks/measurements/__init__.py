"""The measurements, in the order in which `python -m benchmarks` runs them.

    keyed_count/    a: counting by key, beside other engines
    full_job        b: the full job of one processor
    quix_core       b: the same core in Quix Streams
    two_workers     b: the same by two processors of one machine
    latency         c: from the client's call to the audit record
    recovery        d: recovery from the changelog
    footprint       e: memory and disk of an idle session
    sinks           f: rows into ClickHouse
    sink_delay      f: from an audit record to its visible row, for `sinks`
    client_cost     g: the client's cost for its agent
    spool_replay    g: the rate at which a client sends a dead process's events
    heartbeat_cost  g: the cost of the heartbeats of 10,000 sessions
    growth          h: cost per event as live sessions grow
    rolling_restart k: pauses of partitions in a rolling restart
    million         m: a million sessions: recovery, restart in place, tombstones
    command_times   o: the times of operators' commands and of scrapes
    past            n: a session's state at a point, from each source
    conversation    n: what a growing conversation takes, in ClickHouse and in the changelog
    instructions    n: instructions of an agent's event, with and without snapshots
    many_partitions p: idle partitions, and latency with many
    idle_sinks      q: the cost of idle partitions for sinks and ClickHouse
    restart         r: restart and takeover after kill -9
    streams_full_job/ s: the full job beside the same as a program on Kafka Streams
    call_latency    t: from a tool call's reservation to its grant
    task_start      t: from the start of a task to its id
    status_latency  t: the status of runs and tasks beside a load of events
    metrics_cost    u: the full job with and without metrics
    base_commit     v: the full job beside another commit's
    base_client     v: the client's calls beside those of another commit's
    base_sinks      v: the sinks beside another commit's
    view_cost       w: views of a day over ten million rows
    migration_freeze x: the time for which a planned migration freezes a session
    drain           y: the time in which a service's idle sessions move to another one
    follow_latency  z: from an update to the state at followers in other processes

Each measurement is a module with `run(bench: Bench) -> list[Result]`. It is imported when its turn
comes, so that its dependencies are separate. Its module's name is the key under which `Bench.done`
keeps its figures for the measurements after it, and the name of its results file. Those of v, which
are judged by the build of the core, have a second file for the pure one.
"""

from typing import NamedTuple

from sessionary.stream_processors.core_build import CoreBuild

_PURE = "_pure"


class Measurement(NamedTuple):
    """One measurement.

    `letter` selects it on the command line; several may share one. `by_build`: the figures of the
    native and of the pure core are kept beside each other.
    """

    letter: str
    name: str
    title: str
    by_build: bool = False

    @property
    def module(self) -> str:
        """The module that holds `run`."""
        return f"benchmarks.measurements.{self.name}"

    def part(self, build: CoreBuild) -> str:
        """Return the name of the results file, without its ending, of a build of the core."""
        return f"{self.name}{_PURE}" if self.by_build and build == "python" else self.name

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all results files that it may write."""
        return tuple(dict.fromkeys((self.part("native"), self.part("python"))))


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement("a", "keyed_count", "Counting by key, beside other engines"),
    Measurement("b", "full_job", "The full job of one processor"),
    Measurement("b", "quix_core", "The same core in Quix Streams"),
    Measurement("b", "two_workers", "The full job of two processors on one machine"),
    Measurement("c", "latency", "From the client's call to the audit record"),
    Measurement("d", "recovery", "Recovery from the changelog"),
    Measurement("e", "footprint", "What an idle session costs"),
    Measurement("f", "sinks", "Rows into ClickHouse"),
    Measurement("g", "client_cost", "What the client costs its agent"),
    Measurement("g", "spool_replay", "Replay of a dead process's spool"),
    Measurement("g", "heartbeat_cost", "What heartbeats cost"),
    Measurement("h", "growth", "Cost per event as live sessions grow"),
    Measurement("k", "rolling_restart", "Rolling restart of three processors"),
    Measurement("m", "million", "A million sessions and their tombstones"),
    Measurement("n", "past", "A session's state at a point", by_build=True),
    Measurement("n", "conversation", "What a growing conversation takes"),
    Measurement("n", "instructions", "Instructions of an agent's event"),
    Measurement("o", "command_times", "How long operators wait"),
    Measurement("p", "many_partitions", "One processor with many partitions"),
    Measurement("q", "idle_sinks", "Sinks and ClickHouse beside idle partitions"),
    Measurement("r", "restart", "Restart and takeover after kill -9"),
    Measurement("s", "streams_full_job", "The full job beside Kafka Streams'"),
    Measurement("t", "call_latency", "From a tool call's reservation to its grant"),
    Measurement("t", "task_start", "From the start of a task to its id"),
    Measurement("t", "status_latency", "Status of runs and tasks beside a load"),
    Measurement("u", "metrics_cost", "What metrics cost the full job"),
    Measurement("v", "base_commit", "The full job beside another commit's", by_build=True),
    Measurement("v", "base_client", "The client's calls beside those of another commit's", by_build=True),
    Measurement("v", "base_sinks", "The sinks beside another commit's", by_build=True),
    Measurement("w", "view_cost", "Views of a day over ten million rows"),
    Measurement("x", "migration_freeze", "The freeze of a planned migration"),
    Measurement("y", "drain", "Draining a service of its idle sessions"),
    Measurement("z", "follow_latency", "From an update to followers in other processes"),
)

__all__ = ["MEASUREMENTS", "Measurement"]
