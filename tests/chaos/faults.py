"""Carries out the schedule, each fault in a thread, and waits until the stack has recovered.

What counts as recovery, by the target of the fault:

processor    each partition that it owned has a transaction newer than the kill or freeze
quotas       another worker is ready, and more runs took a slot than may have been admitted before
sink         the offsets of its group move again
a broker     each partition has a newer transaction, and each sink passes the end that its log had
             when the brokers answered
late ones    each partition has a newer transaction
ClickHouse   it has a row newer than the kill, or than the end of the slow phase
agent        the spool of the dead process is drained; a frozen one knows that it is fenced off
full spool   the agent's spool is drained after the disk has room again
full store   each partition that the processor owned has a transaction after the disk has room again

`recovery` says how soon that must be.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaException

from sessionary.infra.stack import api_ready
from tests.chaos.agent_freeze import AgentFreezes
from tests.chaos.commit_watch import CommitWatch
from tests.chaos.late_requests import delay_requests
from tests.chaos.load import Load
from tests.chaos.quota_runs import QuotaRuns
from tests.chaos.recovery import GO_ON_S_MAX, FaultOutcome, judge_recovery
from tests.chaos.schedule import NEEDS_QUOTAS, SINK_TOPICS, Fault, FaultKind
from tests.chaos.stack import PARTITIONS, PREFIX, ChaosStack, now_ms

_RECOVERY_S_MAX = 240.0
_OPEN_MAX = 2
_LOOK_S = 0.1
_STOP_AND_GO_S = (0.45, 0.05)
_BROKER_DELAY_S = 0.3
_ASK_EVERY_S = 1.0
_WITHOUT_CLICKHOUSE: frozenset[FaultKind] = frozenset(
    {"kill processor", "freeze processor", "kill quotas", "late requests", "full store"}
)
_RESET_EACH_S = 0.7
_DELAY_S = 0.3


class Faults:
    """Carries out a schedule; `report` is called with a line for each fault that is over."""

    def __init__(
        self,
        stack: ChaosStack,
        load: Load,
        watch: CommitWatch,
        report: Callable[[str], None],
        freezes: AgentFreezes,
        are_quotas_in_force: Callable[[], bool],
        quota_runs: QuotaRuns,
        go_on_s_max: float = GO_ON_S_MAX,
    ) -> None:
        self._stack, self._load, self._watch, self._report = stack, load, watch, report
        self._freezes, self._are_quotas_in_force, self._quota_runs = freezes, are_quotas_in_force, quota_runs
        self._go_on_s_max = go_on_s_max
        self.outcomes: list[FaultOutcome] = []
        self.left_out: list[Fault] = []
        self.begun: Counter[FaultKind] = Counter()
        self._lock = threading.Lock()
        self._disturbed_s = 0.0  # monotonic; when a part was killed last, or a longer fault ended
        self._stalled: Counter[str] = Counter()  # by broker: how many stalls last now
        self._network = threading.Lock()  # a proxy does one thing at a time
        self._admission = threading.Lock()  # the worker of quotas is killed while it admits runs
        self._began_s: float | None = None
        self._threads: list[threading.Thread] = []

    def carry_out(self, schedule: list[Fault], until_s: float) -> None:
        """Begin each fault at its time, or later if two others have not recovered yet.

        Otherwise a slow machine would see one long outage. One that needs quotas begins once runs
        ask for them. Blocks until the last one has begun; none begins after `until_s`
        (epoch).
        """
        round_s = time.monotonic()
        self._began_s = self._began_s or round_s
        postponed: list[Fault] = []
        for fault in schedule:
            time.sleep(max(0.0, round_s + fault.at_s - time.monotonic()))
            # An agent always dies one second after the broker: its spool must contain events.
            if fault.kind == "kill agent":
                self._begin(fault, until_s)
                continue
            if postponed and self._are_quotas_in_force():
                self._begin_in_turn(postponed.pop(0), until_s)
            if fault.kind in NEEDS_QUOTAS and not self._are_quotas_in_force():
                postponed.append(fault)
            else:
                self._begin_in_turn(fault, until_s)
        for fault in postponed:
            while not self._are_quotas_in_force() and time.time() < until_s:
                time.sleep(_LOOK_S)
            self._begin_in_turn(fault, until_s)

    def _begin_in_turn(self, fault: Fault, until_s: float) -> None:
        while self._open() >= _OPEN_MAX and time.time() < until_s:
            time.sleep(_LOOK_S)
        self._begin(fault, until_s)

    def _begin(self, fault: Fault, until_s: float) -> None:
        if time.time() >= until_s:
            self.left_out.append(fault)
            return
        thread = threading.Thread(target=self._run_fault, args=(fault,), name=f"{fault.kind} {fault.target}")
        self.begun[fault.kind] += 1
        thread.start()
        self._threads.append(thread)

    def _open(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def stalled_brokers(self) -> frozenset[str]:
        """Return the brokers that are frozen now, or to which the network is disturbed."""
        with self._lock:
            return frozenset(+self._stalled)

    def wait(self) -> None:
        """Wait until each fault has recovered or timed out."""
        for thread in self._threads:
            thread.join()

    def _run_fault(self, fault: Fault) -> None:
        assert self._began_s is not None
        began_s = round(time.monotonic() - self._began_s, 1)
        try:
            outcome = self._apply_fault(fault)
        except Exception as error:  # noqa: BLE001 - errors of the harness must reach the report, not end in a thread
            outcome = FaultOutcome(fault, None, f"{type(error).__name__}: {error}")
        with self._lock:
            self.outcomes.append(outcome._replace(began_s=began_s))
        took = "never recovered" if outcome.recovered_s is None else f"recovered in {outcome.recovered_s:.1f} s"
        self._report(f"{began_s:6.1f} s  {fault.kind} {fault.target}: {took}{outcome.note and '; ' + outcome.note}")

    def _apply_fault(self, fault: Fault) -> FaultOutcome:
        match fault.kind:
            case "kill processor" | "freeze processor":
                return self._hit_processor(fault)
            case "kill quotas":
                return self._kill_quotas(fault)
            case "kill sink":
                return self._hit_sink(fault)
            case "kill broker" | "restart broker":
                number = signal.SIGKILL if fault.kind == "kill broker" else signal.SIGTERM
                self._stack.signal(fault.target, number)
                self._note_disturbance()
                return self._wait_broker(fault)
            case "freeze broker" | "cut network" | "slow network" | "reset connections":
                self._stall_broker(fault)
                return self._wait_broker(fault, f"for {fault.lasts_s:.0f} s")
            case "late requests":
                return self._delay_requests(fault)
            case "kill clickhouse":
                self._stack.signal("clickhouse", signal.SIGKILL)
                self._note_disturbance()
                return self._wait_recovered(fault, now_ms(), self._row_after)
            case "slow clickhouse":
                self._slow_clickhouse(fault.lasts_s)
                self._note_disturbance()
                return self._wait_recovered(fault, now_ms(), self._row_after, f"ran a tenth of {fault.lasts_s:.0f} s")
            case "kill agent":
                return self._hit_agent(fault)
            case "freeze agent":
                return self._freeze_agent(fault)
            case "full spool":
                return self._fill_spool(fault)
            case "full store":
                return self._fill_store(fault)

    def _note_disturbance(self) -> None:
        """Note that a part was killed now, or that a longer fault has ended."""
        self._disturbed_s = time.monotonic()

    def _wait_recovered(
        self, fault: Fault, since_ms: int, recovered: Callable[[int], bool], note: str = ""
    ) -> FaultOutcome:
        """Poll `recovered` until it returns True; too late is as bad as never.

        Another fault may begin meanwhile, or kill the servers: then the time runs from its end, or
        from their first answer.
        """
        deadline = time.monotonic() + _RECOVERY_S_MAX
        answered_s: float | None = None
        asked_s = 0.0
        while (now_s := time.monotonic()) < deadline:
            try:
                if now_s - asked_s >= _ASK_EVERY_S:
                    asked_s = now_s
                    self._stack.ask_servers(clickhouse=fault.kind not in _WITHOUT_CLICKHOUSE)
                    answered_s = answered_s or now_s
            except (OSError, KafkaException):
                answered_s = None  # away, perhaps again
            try:
                if recovered(since_ms):
                    took_s, went_on_s = (now_ms() - since_ms) / 1_000, time.monotonic()
                    after_s = went_on_s - max(answered_s or went_on_s, self._disturbed_s)
                    return judge_recovery(FaultOutcome(fault, took_s, note), after_s, self._go_on_s_max)
            except (OSError, KafkaException):
                answered_s = None
            time.sleep(_LOOK_S)
        return FaultOutcome(fault, None, note)

    def _wait_broker(self, fault: Fault, note: str = "") -> FaultOutcome:
        """Wait until all partitions and sinks go on."""
        ends: dict[str, dict[int, int]] = {}

        def goes_on(at_ms: int) -> bool:
            offsets = {
                kind: self._stack.group_offsets(f"{PREFIX}.sink.{kind}", f"{PREFIX}.{topic}")
                for kind, topic in SINK_TOPICS.items()
            }
            for kind, found in offsets.items():
                ends.setdefault(kind, {number: end for number, (end, _) in found.items()})
            sinks = all(done >= ends[kind][n] for kind, found in offsets.items() for n, (_, done) in found.items())
            return sinks and self._watch.committed_since(set(range(PARTITIONS)), at_ms)

        return self._wait_recovered(fault, now_ms(), goes_on, note)

    def _stall_broker(self, fault: Fault) -> None:
        """Freeze a broker, or disturb the network between it and all parts; then end that."""
        with self._lock:
            self._stalled[fault.target] += 1
        try:
            self._disturb_broker(fault)
        finally:
            with self._lock:
                self._stalled[fault.target] -= 1
            self._note_disturbance()

    def _disturb_broker(self, fault: Fault) -> None:
        proxy, deadline_s = self._stack.proxies[fault.target], time.monotonic() + fault.lasts_s
        if fault.kind == "freeze broker":
            pid = self._stack.signal(fault.target, signal.SIGSTOP)
            time.sleep(fault.lasts_s)
            self._resume_process(fault.target, pid)
        elif fault.kind == "reset connections":
            while time.monotonic() < deadline_s:
                proxy.reset_connections()
                time.sleep(_RESET_EACH_S)
        else:
            with self._network:
                if fault.kind == "cut network":
                    proxy.hold_packets()
                else:
                    proxy.delay_packets(_DELAY_S)
                time.sleep(fault.lasts_s)
                proxy.pass_packets()

    def _delay_requests(self, fault: Fault) -> FaultOutcome:
        assert self._stack.late_requests is not None
        note = delay_requests(self._stack.late_requests)
        self._note_disturbance()
        everywhere = set(range(PARTITIONS))
        return self._wait_recovered(fault, now_ms(), lambda at_ms: self._watch.committed_since(everywhere, at_ms), note)

    def _hit_processor(self, fault: Fault) -> FaultOutcome:
        owned = self._watch.owned_by(fault.target)
        number = signal.SIGKILL if fault.kind == "kill processor" else signal.SIGSTOP
        pid = self._stack.signal(fault.target, number)
        self._note_disturbance()
        since_ms = now_ms()
        note = f"owned {len(owned)} partitions"
        if fault.kind == "kill processor" and not owned:
            return self._wait_recovered(
                fault, since_ms, lambda _: self._ready_again(fault.target, pid), "owned nothing"
            )
        if fault.kind == "kill processor":
            return self._wait_recovered(fault, since_ms, lambda at_ms: self._watch.committed_since(owned, at_ms), note)
        resume = threading.Timer(fault.lasts_s, self._resume_process, (fault.target, pid))
        resume.start()
        outcome = self._wait_recovered(fault, since_ms, lambda at_ms: self._watch.committed_since(owned, at_ms), note)
        resume.join()
        # After the freeze it is fenced, and must become ready again: by a rejoin or a restart.
        back = self._wait_recovered(fault, now_ms(), lambda _: api_ready(self._stack.control_urls[fault.target]))
        if back.recovered_s is None:
            return back._replace(note="did not come back after its freeze")
        again = f"frozen for {fault.lasts_s:.0f} s, ready {back.recovered_s:.1f} s after it"
        return outcome._replace(note=f"{note}; {again}")

    def _kill_quotas(self, fault: Fault) -> FaultOutcome:
        """Kill the one worker while it admits runs, so not before it is back from its last kill."""
        with self._admission:
            pid = self._stack.signal(fault.target, signal.SIGKILL)
            self._note_disturbance()
            return self._wait_recovered(fault, now_ms(), self._quota_runs.admission_after(pid))

    def _ready_again(self, name: str, pid: int) -> bool:
        return self._stack.pid(name) not in (None, pid) and api_ready(self._stack.control_urls[name])

    def _resume_process(self, name: str, pid: int) -> None:
        if self._stack.pid(name) == pid:
            self._stack.signal(name, signal.SIGCONT)
            self._note_disturbance()

    def _hit_sink(self, fault: Fault) -> FaultOutcome:
        kind = fault.target.removeprefix("sink-")
        group, topic = f"{PREFIX}.sink.{kind}", f"{PREFIX}.{SINK_TOPICS[kind]}"
        self._stack.signal(fault.target, signal.SIGKILL)
        self._note_disturbance()
        since_ms = now_ms()
        before: list[dict[int, tuple[int, int]]] = []

        def has_progress(_at_ms: int) -> bool:
            now = self._stack.group_offsets(group, topic)
            if not before:
                before.append(now)
            # Without new records the offsets cannot move: then it is enough that there is no lag.
            return any(now[number][1] > done for number, (_, done) in before[0].items()) or (
                time.time() * 1_000 - since_ms > 15_000 and all(end <= done for end, done in now.values())
            )

        return self._wait_recovered(fault, since_ms, has_progress)

    def _row_after(self, at_ms: int) -> bool:
        return self._stack.newest_row_ms() > at_ms

    def _slow_clickhouse(self, seconds: float) -> None:
        """Let ClickHouse run for short moments only."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for number, pause_s in zip((signal.SIGSTOP, signal.SIGCONT), _STOP_AND_GO_S, strict=True):
                self._stack.signal("clickhouse", number)
                time.sleep(pause_s)

    def _hit_agent(self, fault: Fault) -> FaultOutcome:
        left = self._kill_and_list_spool(fault.target)
        note = f"{sum(size for size in left.values()) >> 10} KiB left in its spool"

        def is_drained(_at_ms: int) -> bool:
            there = {path.name for path in self._load.spool_segments(fault.target)}
            return not there & left.keys()

        return self._wait_recovered(fault, now_ms(), is_drained, note)

    def _kill_and_list_spool(self, name: str) -> dict[str, int]:
        """Kill an agent; return the spool segments that it leaves, with their written bytes."""
        self._load.kill(name)
        self._note_disturbance()
        return {path.name: written_bytes(path.read_bytes()) for path in self._load.spool_segments(name)}

    def _freeze_agent(self, fault: Fault) -> FaultOutcome:
        freeze = self._freezes.begin(fault)
        freeze.hold()
        outcome = self._wait_recovered(fault, freeze.resumed_ms, lambda _: freeze.is_fenced(), freeze.describe())
        self._freezes.end(freeze)
        return outcome

    def _fill_spool(self, fault: Fault) -> FaultOutcome:
        """Fill the disk, then kill every broker, so that the spool grows."""
        disk = self._stack.disks[fault.target]
        disk.fill()
        before = self._load.read_status(fault.target).get("dropped", 0)
        try:
            time.sleep(_BROKER_DELAY_S)
            for broker in self._stack.brokers:
                self._stack.signal(broker, signal.SIGKILL)
            time.sleep(fault.lasts_s)
        finally:
            disk.empty()
            self._note_disturbance()
        since_ms = now_ms()

        def is_drained(_at_ms: int) -> bool:
            return bool(self._load.read_status(fault.target).get("outstanding") == 0)

        outcome = self._wait_recovered(fault, since_ms, is_drained)
        dropped = self._load.read_status(fault.target).get("dropped", 0) - before
        where = "tmpfs" if disk.mounted else "injected"
        return outcome._replace(note=f"{where}; {dropped} events dropped, each must appear as a gap")

    def _fill_store(self, fault: Fault) -> FaultOutcome:
        disk = self._stack.disks[fault.target]
        if not disk.mounted:
            return FaultOutcome(
                fault, 0.0, "left out: no disk can be mounted here, and ENOSPC cannot be injected into RocksDB"
            )
        disk.fill()
        time.sleep(fault.lasts_s)
        disk.empty()
        self._note_disturbance()
        owned = self._watch.owned_by(fault.target)
        return self._wait_recovered(
            fault, now_ms(), lambda at_ms: self._watch.committed_since(owned, at_ms), f"owned {len(owned)}, tmpfs"
        )


def written_bytes(segment: bytes) -> int:
    """Return how many bytes of a preallocated segment hold frames: up to the first length of 0."""
    at = 0
    while at + 8 <= len(segment) and (length := int.from_bytes(segment[at : at + 4], "big")):
        at += 8 + length
    return at
