"""Real alerts of a real stack: `python -m tests.alerts`, or `make alerts`.

Starts the local stack under load, Prometheus and Alertmanager with a webhook, and brings about what
the alerts are for. Exit code 1 if one does not arrive, or arrives late.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sessionary.infra.alerts.thresholds import read_thresholds
from sessionary.infra.cli.commands.up import START_S_MAX, activate_newest_rules
from sessionary.infra.local.ports import is_free
from tests.alerts.episode import Episode
from tests.alerts.load import DemoLoad
from tests.alerts.monitoring import Monitoring
from tests.alerts.report import Figures, find_faults, other_alerts, report_lines, report_object
from tests.alerts.scenarios import Bench, forget_cleanups, halt_partition, stop_processor, stop_sink
from tests.alerts.watched_stack import WatchedStack
from tests.support.debian_packages import MONITORING, ensure_programs
from tests.support.slowness import Slowness

BUILD = Path(__file__).parents[2] / "build" / "alerts"
SETTINGS = read_thresholds(lag_s=10, page_for_s=5, ticket_for_s=5, window_s=60)
SCENARIOS = ("cleanups", "sink", "processor", "partition")
_TERMINATED = 128 + signal.SIGTERM


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.alerts", description=__doc__)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this scenario; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser.parse_args(argv)


def run_scenarios(names: Sequence[str], say: Callable[[str], None]) -> tuple[list[Episode], Figures]:
    """Run scenarios, one after the other. Blocks for some minutes; all it starts has ended then.

    Raises AssertionError if an alert does not arrive, `StartFailed` if the stack does not start.
    """
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    troubles = (BUILD / "load.log").open("w", buffering=1)

    def note_trouble(text: str) -> None:
        troubles.write(f"{text}\n")

    with tempfile.TemporaryDirectory(prefix="sessionary-alerts-") as folder, troubles:
        say("starting broker, ClickHouse, processor, sinks and lag exporter")
        stack = WatchedStack(Path(folder) / "stack", BUILD)
        episodes: list[Episode] = []
        figures = Figures()
        with stack:
            stack.wait_ready(START_S_MAX)
            activate_newest_rules(stack)
            say("starting Alertmanager and Prometheus")
            with (
                Monitoring(Path(folder), BUILD, stack.targets_file, SETTINGS) as monitoring,
                DemoLoad(stack.environ, note_trouble) as load,
                Slowness() as slowness,
            ):
                ports = [*stack.ports, monitoring.prometheus_port, monitoring.alertmanager_port]
                bench = Bench(stack, monitoring, SETTINGS, Path(folder), say)
                if "cleanups" in names:
                    say("a host forgets every tenth clean-up")
                    found, figures.reclaim = forget_cleanups(bench)
                    episodes += found
                if "sink" in names:
                    say("a sink is stopped")
                    episodes += stop_sink(bench)
                if "processor" in names:
                    say("the processor is stopped")
                    episodes += stop_processor(bench)
                if "partition" in names:
                    say("a partition is halted by a batch that cannot be read")
                    found, figures.is_ready_while_halted = halt_partition(bench)
                    episodes += found
                figures.other_alerts = other_alerts(monitoring.messages, episodes)
                say("stopping")
            figures.load_events, figures.slack_s = load.events, slowness.slack_s
    figures.left_over = [f"port {port}" for port in ports if not is_free(port)]
    figures.left_over += [folder] if Path(folder).exists() else []
    return episodes, figures


def main(argv: Sequence[str]) -> int:
    """Return the exit code."""
    options = _options(argv)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))

    def say(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - began:6.1f} s] {text}\n")
        sys.stderr.flush()

    if not ensure_programs(MONITORING, say):
        return 6
    try:
        episodes, figures = run_scenarios(options.only or SCENARIOS, say)
    except AssertionError as error:
        say(f"{error}\nlogs are in build/alerts")
        return 1
    figures.seconds = round(time.monotonic() - began, 1)
    faults = find_faults(episodes, figures)
    found: Any = report_object(episodes, figures)
    lines = [json.dumps(found)] if options.json else report_lines(episodes, figures)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    for text in faults:
        say(text)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
