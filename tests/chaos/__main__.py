"""Run a real stack under load and faults, then audit it: `python -m tests.chaos --seed 1`.

Exit code 1 if anything differs. The same seed gives the same load and the same faults.
"""

import argparse
import json
import pickle
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.auditor.checks import Difference, replay_evidence, run_checks
from tests.auditor.evidence import Evidence, gather_evidence
from tests.auditor.take_overs import count_stale, read_trails
from tests.chaos.activation import RulesActivation
from tests.chaos.agent_freeze import AgentFreezes
from tests.chaos.claim_rows import find_disagreeing_rows
from tests.chaos.commit_watch import CommitWatch
from tests.chaos.faults import Faults
from tests.chaos.integrity_check import Fault as IntegrityFault
from tests.chaos.integrity_check import ask_integrity, find_disagreements, find_uncompared
from tests.chaos.load import Load
from tests.chaos.losses import show_losses
from tests.chaos.process_watch import Growth, PartitionCount, ProcessWatch, find_growth
from tests.chaos.quota_runs import QuotaFigures, QuotaRuns
from tests.chaos.readiness_watch import ReadinessWatch, count_partitions
from tests.chaos.recovery import GO_ON_S_MAX
from tests.chaos.report import Result, as_json, format_report
from tests.chaos.rounds import carry_out_rounds, find_missing_kinds
from tests.chaos.schedule import (
    KINDS,
    NEEDS_QUOTAS,
    QUOTA_SLOTS,
    QUOTA_TENANT,
    Fault,
    FaultKind,
    count_required,
    draw_faults,
    find_rare_kinds,
    kinds_in_deck,
)
from tests.chaos.settle import settle_stack
from tests.chaos.small_disk import enter_namespace
from tests.chaos.stack import DATABASE, PARTITIONS, PREFIX, ChaosStack
from tests.support.waiting import wait_until

_BUILD = Path(__file__).parents[2] / "build" / "chaos"
_PROGRESS_S = 10.0
_LATELY_S = 10.0
_FLOWS_S = 180.0
_ACTIVE_S = 120.0
_ROUND_SEEDS = 1_000  # between the seeds of two rounds
_TERMINATED = 128 + signal.SIGTERM


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="duration of load and faults")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load and the faults")
    parser.add_argument("--rate", type=float, default=250.0, help="events per second of all agents together")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), default=1, help="with 3, a broker fault hits one of them"
    )
    parser.add_argument(
        "--only", metavar="KIND", action="append", default=[], help="only faults of this kind; may be repeated"
    )
    parser.add_argument(
        "--kinds-min", type=int, default=0, help="begin further rounds until so many kinds of faults have begun"
    )
    parser.add_argument(
        "--go-on-s", type=float, default=GO_ON_S_MAX, help="how long after a fault everything must go on, in seconds"
    )
    parser.add_argument("--json", type=Path, help="where to write the result as JSON; default build/chaos/<run>.json")
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs even if nothing differs")
    given = parser.parse_args(argv)
    if given.minutes <= 0 or given.rate <= 0:
        parser.error("--minutes and --rate must be greater than 0")
    if unknown := [kind for kind in given.only if kind not in KINDS]:
        parser.exit(2, f"there is no fault of the kind {unknown[0]!r}; the kinds are {', '.join(KINDS)}\n")
    return given


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _report_progress(load: Load, watch: CommitWatch, began_s: float, stop: threading.Event) -> None:
    while not stop.wait(_PROGRESS_S):
        owners = " ".join(f"{number}:{commit.instance}" for number, commit in sorted(watch.commits.items()))
        _say(f"{time.monotonic() - began_s:6.1f} s  {load.event_count():,} events delivered; partitions {owners}")


def _run(options: argparse.Namespace, logs: Path, *, namespace: bool) -> Result:
    began_s = time.monotonic()
    seconds, deck = options.minutes * 60, _deck(options, namespace=namespace)
    stack = ChaosStack(logs, brokers=options.brokers, small_disks=namespace, deck=deck)
    try:
        _say(f"starting {', '.join(stack.brokers)}, ClickHouse, two processors, four sinks")
        stack.start()
        at_once = set(deck) <= NEEDS_QUOTAS
        activation = RulesActivation(stack, options.seed, seconds, _say, at_once=at_once)
        if at_once:  # else the time of the load would be over before its first fault
            activation.start()
            activation.wait(_ACTIVE_S)
        load = Load(stack, seed=options.seed, rate=options.rate, seconds=seconds)
        watch, stop, freezes = CommitWatch(stack.servers_address), threading.Event(), AgentFreezes(stack, options.seed)
        quota_runs = QuotaRuns(stack, options.seed, activation.are_in_force)
        faults = Faults(stack, load, watch, _say, freezes, activation.are_in_force, quota_runs, options.go_on_s)
        readiness = ReadinessWatch(stack, watch, faults.stalled_brokers)
        processes = _process_watch(stack, load, watch)
        progress = threading.Thread(target=_report_progress, args=(load, watch, time.monotonic(), stop), daemon=True)
        try:
            load.start()
            quota_runs.start()
            progress.start()
            # Before the first transaction a fault would have no effect.
            wait_until(
                lambda: watch.committed_since(set(range(PARTITIONS)), 0),
                _FLOWS_S,
                "every partition to have a transaction",
            )
            if not at_once:
                activation.start()
            with readiness, processes:
                _carry_out_faults(options, faults, load, stack.brokers, namespace=namespace)
                time.sleep(max(0.0, load.until_s - time.time()))
            not_activated, unadmitted = activation.wait(_ACTIVE_S), quota_runs.finish()
            unsettled = not_activated + settle_stack(stack, load, _say)
        finally:
            activation.stop()
            stop.set()
            freezes.close()
            quota_runs.close()
            load.stop()
            watch.close()
        _say("auditing")
        evidence = _gather_evidence(stack, load, freezes, quota_runs)
        (logs / "evidence.pickle").write_bytes(pickle.dumps(evidence))  # to investigate differences
        integrity, notes = ask_integrity(stack.kafka, stack.clickhouse)
        for note in notes:
            _say(note)
        findings = _find_differences(options, faults, readiness, processes, unsettled, namespace=namespace)
        findings += find_uncompared(notes)
        findings += [Difference("take-over", text) for text in freezes.faults]
        findings += [Difference("quota", text) for text in unadmitted]
        findings += find_disagreeing_rows(evidence, f"{stack.clickhouse_url}/?database={DATABASE}")
        findings += show_losses(stack, evidence, options.seed, _say)
        return _result(
            options,
            evidence,
            faults,
            findings,
            integrity,
            processes.growth(),
            quota_runs.figures,
            time.monotonic() - began_s,
            namespace=namespace,
        )
    finally:
        stack.close()


def _process_watch(stack: ChaosStack, load: Load, watch: CommitWatch) -> ProcessWatch:
    return ProcessWatch(
        lambda: {**stack.pids(), **load.pids()},
        lambda name: PartitionCount(
            count_partitions(stack.control_urls[name]) if name in stack.control_urls else 0,
            watch.count_at_work(name, round((time.time() - _LATELY_S) * 1_000)),
        ),
    )


def _gather_evidence(stack: ChaosStack, load: Load, freezes: AgentFreezes, quota_runs: QuotaRuns) -> Evidence:
    journals = [*load.journal_paths(), *freezes.journal_paths(), *quota_runs.journal_paths()]
    found = gather_evidence(stack.servers_address, PREFIX, stack.clickhouse_url, DATABASE, journals, PARTITIONS)
    return found._replace(
        sessions=load.planned_sessions(),
        lifetimes=load.lifetimes(),
        claims=freezes.claims,
        quota_limits={QUOTA_TENANT: QUOTA_SLOTS},
    )


def _carry_out_faults(
    options: argparse.Namespace, faults: Faults, load: Load, brokers: Sequence[str], *, namespace: bool
) -> None:
    seconds, deck = options.minutes * 60, _deck(options, namespace=namespace)

    def draw(n: int, kinds: Collection[FaultKind]) -> list[Fault]:
        duration_s = load.further_s if n else seconds
        return draw_faults(options.seed + _ROUND_SEEDS * n, duration_s, kinds or options.only, brokers)

    def find_missing(begun: Counter[FaultKind]) -> list[FaultKind]:
        return find_missing_kinds(begun, deck, options.kinds_min, count_required(options.minutes, options.only))

    carry_out_rounds(faults, load, draw, find_missing)


def _deck(options: argparse.Namespace, *, namespace: bool) -> list[FaultKind]:
    """Return the kinds of faults of a run; without a namespace no disk of a store can be filled."""
    kinds = kinds_in_deck(options.minutes * 60, options.only)
    return [kind for kind in kinds if namespace or kind != "full store"]


def _find_differences(
    options: argparse.Namespace,
    faults: Faults,
    readiness: ReadinessWatch,
    processes: ProcessWatch,
    unsettled: list[str],
    *,
    namespace: bool,
) -> list[Difference]:
    """Return what went wrong while the stack ran."""
    found = [Difference("lost", text) for text in unsettled]
    for one in faults.outcomes:
        if one.recovered_s is None:
            text = f"no recovery from {one.fault.kind} {one.fault.target} at {one.began_s} s: {one.note}"
            found.append(Difference("judgement", text))
    deck = _deck(options, namespace=namespace)
    happened = [one.fault.kind for one in faults.outcomes]
    found += [Difference("rare fault", text) for text in find_rare_kinds(happened, deck, options.minutes, options.only)]
    found += [Difference("readiness", text) for text in readiness.sentences]
    if not readiness.observations:
        found.append(Difference("readiness", "the brokers never answered, so no readiness was checked"))
    return found + [Difference("growth", text) for text in find_growth(processes.growth(), options.minutes * 60)]


def _result(
    options: argparse.Namespace,
    evidence: Evidence,
    faults: Faults,
    findings: list[Difference],
    integrity: list[IntegrityFault],
    growth: list[Growth],
    quotas: QuotaFigures,
    seconds: float,
    *,
    namespace: bool,
) -> Result:
    inputs = replay_evidence(evidence)
    differences = findings + run_checks(inputs) + find_disagreements(inputs, integrity)
    audits = [fields for _, fields in evidence.outputs["audit"]]
    return Result(
        seed=options.seed,
        minutes=options.minutes,
        brokers=options.brokers,
        namespace=namespace,
        events=len(inputs.lines),
        other_records=len(evidence.log) - len(inputs.lines),
        sessions=sum(line["transition"] == "T01" for line in audits),
        audits=len(audits),
        rejections=len(evidence.outputs["rejected"]),
        timeouts=sum(line["fired_at"] is not None for line in audits),
        dropped=sum(str(line["error"]).startswith("dropped") for line in evidence.journal),
        seconds=round(seconds, 1),
        left_out=len(faults.left_out),
        claims=count_stale(read_trails(evidence, inputs.lines), evidence.claims),
        quotas=quotas,
        outcomes=sorted(faults.outcomes, key=lambda one: one.began_s),
        growth=growth,
        differences=differences,
    )


def main(argv: Sequence[str]) -> int:
    """Return the exit code."""
    options = _options(argv)
    namespace = enter_namespace(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    run = f"{options.seed}-on-{options.brokers}"  # the same seed may run on one broker beside it
    logs = _BUILD / run
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    result = _run(options, logs, namespace=namespace)
    target = options.json or _BUILD / f"{run}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(as_json(result), indent=1) + "\n")
    for line in format_report(result):
        _say(line)
    if result.good:
        _say(f"nothing lost, nothing doubled, no differences; {result.seconds:.0f} s in total")
        if not options.keep_logs:
            shutil.rmtree(logs)
        return 0
    arguments = " ".join([f"--brokers {options.brokers}", *(f"--only '{kind}'" for kind in options.only)])
    again = f'make chaos MINUTES={options.minutes:g} SEED={options.seed} ARGS="{arguments}"'
    _say(f"{len(result.differences)} differences; logs in build/chaos/{run}; to repeat: {again}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
