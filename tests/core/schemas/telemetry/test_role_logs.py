"""The log lines of a role: their form, what is in them and what is not."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.settings import LogSettings
from sessionary.schemas.telemetry.role_logs import (
    REPEAT_S,
    RepeatLimiter,
    RoleLogHandler,
    error_fields,
    line_formatter,
    role_logger,
    wants_json_lines,
)

_ROLE = """
import logging, sys, threading, warnings
from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger
configure_role_logs("sink history", "s1")
log = role_logger("sessionary.test")
{}
"""


class LogRig:
    """One logger whose lines are read back."""

    def __init__(self, as_json: bool) -> None:
        self.now_s = 100.0
        self.text = io.StringIO()
        self.handler = RoleLogHandler(self.text, lambda: self.now_s)
        self.handler.setFormatter(line_formatter("processor", "w1", as_json))
        self.logger = logging.getLogger("sessionary.test_role_logs")
        self.logger.addHandler(self.handler)
        self.logger.setLevel(logging.INFO)
        self.log = role_logger(self.logger.name)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture(params=[True])
def rig(request: pytest.FixtureRequest) -> Iterator[LogRig]:
    made = LogRig(request.param)
    yield made
    made.logger.removeHandler(made.handler)


as_text = pytest.mark.parametrize("rig", [False], indirect=True)


def run_role(program: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _ROLE.format(program)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_json_line_has_time_level_role_event_and_fields(rig: LogRig) -> None:
    rig.log.warning("partition %(partition)d is halted at %(offset)d", partition=3, offset=17, error_class="Halted")
    [line] = rig.objects
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "role": "processor",
        "instance": "w1",
        "event": "partition 3 is halted at 17",
        "partition": 3,
        "offset": 17,
        "error_class": "Halted",
    }


@as_text
def test_a_text_line_names_the_fields_that_its_event_does_not(rig: LogRig) -> None:
    rig.log.warning("partition %(partition)d is halted:\nlog_gap", partition=3, error_class="Halted")
    [line] = rig.lines
    assert line.split(" ", 1)[1] == r"WARNING processor partition 3 is halted:\nlog_gap instance=w1 error_class=Halted"


def test_the_same_line_of_a_partition_is_written_once_with_a_count(rig: LogRig) -> None:
    for partition, offset in ((1, 5), (1, 6), (2, 7), (1, 8)):
        rig.log.warning("partition %(partition)d waits at %(offset)d", partition=partition, offset=offset)
    rig.now_s += 30.0
    rig.log.warning("partition %(partition)d waits at %(offset)d", partition=1, offset=9)
    assert [(line["offset"], line.get("suppressed")) for line in rig.objects] == [(5, None), (7, None), (9, 2)]


def test_another_state_of_a_part_is_another_line(rig: LogRig) -> None:
    for state in ("starting", "ready", "starting"):
        rig.log.info("%(part)s is %(state)s", part="broker", state=state)
    assert [one["state"] for one in rig.objects] == ["starting", "ready"]


def test_what_a_library_puts_first_into_its_line_tells_lines_apart(rig: LogRig) -> None:
    for kind, detail in (("FAIL", "a"), ("MAXPOLL", "b"), ("FAIL", "c")):
        rig.logger.warning("%s [%s] %s", kind, "rdkafka#1", detail)
    assert [one["event"] for one in rig.objects] == ["FAIL [rdkafka#1] a", "MAXPOLL [rdkafka#1] b"]


def test_why_a_role_ends_is_its_last_line() -> None:
    script = _ROLE.format(
        "from sessionary.schemas.telemetry.role_logs import report_role_end\n"
        "for _ in range(3): log.warning('ClickHouse is away')\n"
        "report_role_end('no table')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == ["ClickHouse is away", "ClickHouse is away", "the role ends: no table"]


def test_the_end_of_the_log_writes_what_was_suppressed_last(rig: LogRig) -> None:
    for offset in range(4):
        rig.log.warning("it waits at %(offset)d", offset=offset)
    rig.handler.close()
    assert [(line["offset"], line.get("suppressed")) for line in rig.objects] == [(0, None), (3, 2)]


def test_a_library_s_line_has_its_logger(rig: LogRig) -> None:
    record = logging.LogRecord("aiokafka.client", logging.ERROR, "", 7, "no %s", ("broker",), None)
    rig.handler.handle(record)
    assert (rig.objects[0]["logger"], rig.objects[0]["event"]) == ("aiokafka.client", "no broker")


def test_a_traceback_is_one_json_line_without_the_texts_of_foreign_errors(rig: LogRig) -> None:
    try:
        try:
            raise KeyError("s3cret of a record")
        except KeyError as error:
            raise Unavailable("the registry does not answer", 1.0) from error
    except Unavailable as error:
        rig.log.error("it failed", exc_info=error, **error_fields(error))
    [line] = rig.objects
    assert "the registry does not answer" in line["exception"]
    assert "KeyError: (its text is left out)" in line["exception"]
    assert "test_role_logs.py" in line["exception"]
    assert "s3cret of" not in re.sub(r'raise KeyError\(".*"\)', "", line["exception"])


def test_lines_below_the_level_are_left_out(rig: LogRig) -> None:
    rig.log.debug("a detail")
    assert rig.lines == []


def test_a_log_that_is_no_terminal_is_json_unless_the_settings_say_text() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert wants_json_lines(LogSettings(), io.StringIO())
    assert not wants_json_lines(LogSettings(), Terminal())
    assert wants_json_lines(LogSettings(log_format="json"), Terminal())
    assert not wants_json_lines(LogSettings(log_format="text"), io.StringIO())
    with pytest.raises(SettingsError, match="SESSIONARY_LOG_FORMAT"):
        LogSettings.from_env({"SESSIONARY_LOG_FORMAT": "xml"})


@pytest.mark.parametrize("place", ["main", "thread"])
def test_a_crash_is_one_line_with_its_traceback(place: str) -> None:
    program = "def fail():\n    raise RuntimeError('s3' + 'cret')\n"
    program += "fail()" if place == "main" else "t = threading.Thread(target=fail)\nt.start()\nt.join()"
    done = run_role(program, SESSIONARY_LOG_FORMAT="json")
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["level"], line["role"], line["error_class"]) == ("critical", "sink history", "RuntimeError")
    assert re.fullmatch(r"thread (MainThread|Thread-1.*) ended by an uncaught exception", line["event"])
    assert line["exception"].startswith("Traceback")
    assert "s3cret" not in done.stderr
    assert (done.returncode != 0) == (place == "main")


def test_a_process_s_libraries_are_quiet_and_its_end_counts() -> None:
    program = "\n".join(
        (
            "for name in ('urllib3', 'clickhouse_connect', 'faust', 'mode', 'aiokafka'):",
            "    logging.getLogger(name + '.connection').info('chatter')",
            "for name in ('urllib3', 'clickhouse_connect'):",
            "    logging.getLogger(name).error('noise')",
            "for n in range(5):",
            "    log.info('the same line', offset=n)",
            "warnings.warn('old')",
        )
    )
    done = run_role(program, SESSIONARY_LOG_LEVEL="INFO")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line.get("suppressed")) for line in lines if "old" not in line["event"]] == [
        ("the same line", None),
        ("the same line", 3),
    ]
    assert any("old" in line["event"] and line["logger"] == "py.warnings" for line in lines)


def test_a_program_that_configured_its_logs_keeps_them() -> None:
    program = "from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger\n" + "\n".join(
        (
            "import logging",
            "logging.basicConfig(format='mine %(message)s', level=logging.INFO)",
            "configure_role_logs('processor')",
            "role_logger('sessionary.x').info('it is %(state)s', state='ready')",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == "mine it is ready\n"


def test_a_line_passes_once_in_thirty_seconds_with_the_count_of_the_others() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    taken = [limiter.take_line("k", f"line {n}", at_s) for n, at_s in enumerate((0.0, 1.0, REPEAT_S - 0.1, REPEAT_S))]
    assert taken == [[("line 0", 0)], [], [], [("line 3", 2)]]
    assert limiter.take_line("k", "line 4", 2 * REPEAT_S) == [("line 4", 0)], "nothing was suppressed since"


def test_other_keys_are_other_lines() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    assert limiter.take_line(("waits", 0), "a", 0.0) == [("a", 0)]
    assert limiter.take_line(("waits", 1), "b", 0.0) == [("b", 0)]
    assert limiter.take_line(("waits", 0), "c", 0.0) == []


def test_the_end_writes_the_last_suppressed_line_and_counts_those_before_it() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    for n in range(4):
        limiter.take_line("k", f"line {n}", 0.0)
    limiter.take_line("once", "alone", 0.0)
    assert limiter.take_suppressed() == [("line 3", 2)]
    assert limiter.take_suppressed() == []


def test_the_key_that_was_written_first_is_forgotten_and_tells_what_it_suppressed() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter(keys_max=2)
    for key, at_s in (("a", 0.0), ("a", 1.0), ("b", 2.0)):
        limiter.take_line(key, f"{key} at {at_s:g}", at_s)
    assert limiter.take_line("c", "c at 3", 3.0) == [("a at 1", 0), ("c at 3", 0)]
    assert limiter.take_line("a", "a at 4", 4.0) == [("a at 4", 0)], "it is a new key"
