"""`python -m tests.chaos --minutes 1 --seed 1`: a real stack under load, faults by a schedule, then the auditor.

Exit code 1 where anything differs; the same seed draws the same load and the same faults.
"""

import argparse
import json
import pickle
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.auditor.checks import Difference, audited, worked_out
from tests.auditor.evidence import Evidence, gather
from tests.chaos.commit_watch import Watch
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.report import Result, as_json, table
from tests.chaos.schedule import KINDS, draw
from tests.chaos.settle import settle
from tests.chaos.small_disk import enter_namespace
from tests.chaos.stack import DATABASE, PARTITIONS, PREFIX, Stage
from tests.support.waiting import wait_until

_BUILD = Path(__file__).parents[2] / "build" / "chaos"
_PROGRESS_S = 10.0
_FLOWS_S = 90.0
_TERMINATED = 128 + signal.SIGTERM


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long there is load and faults")
    parser.add_argument("--seed", type=int, default=1, help="draws the load and the faults")
    parser.add_argument("--rate", type=float, default=250.0, help="events per second, all agents together")
    parser.add_argument(
        "--only", choices=KINDS, action="append", default=[], help="faults of this kind; again for more"
    )
    parser.add_argument("--json", type=Path, help="the result for programs; default build/chaos/<seed>.json")
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs also where all is well")
    given = parser.parse_args(argv)
    if given.minutes <= 0 or given.rate <= 0:
        parser.error("--minutes and --rate are more than 0")
    return given


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _report_progress(load: Load, watch: Watch, began_s: float, stop: threading.Event) -> None:
    while not stop.wait(_PROGRESS_S):
        owners = " ".join(f"{number}:{commit.instance}" for number, commit in sorted(watch.commits.items()))
        _say(f"{time.monotonic() - began_s:6.1f} s  {load.events():,} events delivered; partitions {owners}")


def _run(options: argparse.Namespace, logs: Path, *, namespace: bool) -> Result:
    began_s = time.monotonic()
    seconds = options.minutes * 60
    stage = Stage(logs, small_disks=namespace)
    try:
        _say("starting broker, ClickHouse, two processors, four sinks")
        stage.start()
        load = Load(stage, seed=options.seed, rate=options.rate, seconds=seconds)
        watch, stop = Watch(stage.servers_address), threading.Event()
        faults = Faults(stage, load, watch, _say)
        progress = threading.Thread(target=_report_progress, args=(load, watch, time.monotonic(), stop), daemon=True)
        try:
            load.start()
            progress.start()
            # Before anything is committed a fault could show nothing.
            wait_until(
                lambda: watch.newer(set(range(PARTITIONS)), 0), _FLOWS_S, "every partition to have a transaction"
            )
            faults.carry_out(draw(options.seed, seconds, options.only), load.until_s)
            faults.wait()
            time.sleep(max(0.0, load.until_s - time.time()))
            restless = settle(stage, load, _say)
        finally:
            stop.set()
            load.stop()
            watch.close()
        _say("auditing")
        evidence = gather(
            stage.servers_address, PREFIX, stage.clickhouse_url, DATABASE, load.journals(), PARTITIONS
        )._replace(sessions=load.sessions(), lives=load.lives())
        (logs / "evidence.pickle").write_bytes(pickle.dumps(evidence))  # for whoever looks into a difference
        return _result(options, evidence, faults, restless, time.monotonic() - began_s, namespace=namespace)
    finally:
        stage.close()


def _result(
    options: argparse.Namespace,
    evidence: Evidence,
    faults: Faults,
    restless: list[str],
    seconds: float,
    *,
    namespace: bool,
) -> Result:
    findings = worked_out(evidence)
    differences = [Difference("lost", text) for text in restless]
    for one in faults.suffered:
        if one.recovered_s is None:
            text = f"no recovery from {one.fault.kind} {one.fault.target} at {one.began_s} s: {one.note}"
            differences.append(Difference("judgement", text))
    differences += audited(findings)
    audits = [fields for _, fields in evidence.outputs["audit"]]
    return Result(
        seed=options.seed,
        minutes=options.minutes,
        namespace=namespace,
        events=len(findings.lines),
        other_records=len(evidence.log) - len(findings.lines),
        sessions=sum(line["transition"] == "T01" for line in audits),
        audits=len(audits),
        refusals=len(evidence.outputs["rejected"]),
        timeouts=sum(line["fired_at"] is not None for line in audits),
        dropped=sum(str(line["error"]).startswith("dropped") for line in evidence.journal),
        seconds=round(seconds, 1),
        left_out=len(faults.left_out),
        suffered=sorted(faults.suffered, key=lambda one: one.began_s),
        differences=differences,
    )


def main(argv: Sequence[str]) -> int:
    """Return the exit code."""
    options = _options(argv)
    namespace = enter_namespace(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    logs = _BUILD / str(options.seed)
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    result = _run(options, logs, namespace=namespace)
    target = options.json or _BUILD / f"{options.seed}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(as_json(result), indent=1) + "\n")
    for line in table(result):
        _say(line)
    if result.good:
        _say(f"nothing lost, nothing doubled, nothing differs; {result.seconds:.0f} s in all")
        if not options.keep_logs:
            shutil.rmtree(logs)
        return 0
    again = f"make chaos MINUTES={options.minutes:g} SEED={options.seed}"
    _say(f"{len(result.differences)} differences; logs in build/chaos/{options.seed}; again: {again}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
