"""What the measurements stand on: the events are legal and the same again, figures and files say what was measured."""

import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bench import Bench, Options, parse
from benchmarks.events import Workload, agent_runs
from benchmarks.latency import quantile
from benchmarks.live import session_rows
from benchmarks.machine import facts
from benchmarks.parts import PARTS
from benchmarks.results import Result, Target, figure, print_results, write_results
from benchmarks.sender import AUDITED, SCRIPT_EVENTS, drive
from benchmarks.sinks import visible_at
from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.partition import FoldSettings, LogRecord, PartitionFold

EVENTS = 3_000
BEGAN_MS = 1_795_219_200_000


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(agent_runs(), seed=1, concurrent=40)


def test_the_same_seed_gives_the_same_bytes(workload: Workload) -> None:
    events = list(workload.stream(EVENTS))
    assert events == list(workload.stream(EVENTS))
    assert events == list(Workload(agent_runs(), seed=1, concurrent=40).stream(EVENTS))
    assert events[0] != next(Workload(agent_runs(), seed=2, concurrent=40).stream(1))


def test_the_judge_applies_every_event_and_archives_what_ended(workload: Workload) -> None:
    folds = [PartitionFold(number, FoldSettings("events", 4), Decoder()) for number in range(4)]
    batches = [fold.begin() for fold in folds]
    for number, event in enumerate(workload.stream(EVENTS)):
        partition = partition_of(event.key, 4)
        record = LogRecord(number, BEGAN_MS + number * 10, event.key, event.value, event.headers)
        assert batches[partition].apply(record)
    outcomes = [batch.finish() for batch in batches]
    assert [letter.reason for outcome in outcomes for _, letter in outcome.rejected] == []
    assert sum(outcome.counts.applied for outcome in outcomes) == EVENTS
    moves = Counter(record.transition for outcome in outcomes for _, record in outcome.audits)
    assert {"T01", "T02", "T04", "T05", "T10", "T11", "T13", "T14"} <= moves.keys()


def test_sessions_go_on_side_by_side(workload: Workload) -> None:
    assert len({event.key for event in workload.stream(EVENTS)}) > 40


def test_live_sessions_are_sessions(workload: Workload) -> None:
    rows = list(session_rows(workload.templates, 50, 1, BEGAN_MS))
    states = [Decoder().decode_record(row.packed.value) for row in rows]
    assert len({row.key for row in rows}) == 50
    for row, state in zip(rows, states, strict=True):
        assert isinstance(state, SessionState)
        assert row.key == f"{state.tenant_id}:{state.session_id}".encode()
        assert state.state == "Active"


def test_a_sender_keeps_its_rate_and_names_what_is_audited() -> None:
    class Script:
        def step(self, n: int) -> str | None:
            return f"s/{AUDITED[n]}" if n in AUDITED else None

    lines = list(drive(Script, rate=SCRIPT_EVENTS * 100, seconds=0.1))
    assert len(lines) > len(AUDITED)
    assert lines[-1].startswith("late_ms ")


def test_a_figure_is_the_median_of_its_runs() -> None:
    result = Result("rate", "events/s", [10.0, 30.0, 20.0], Target(">=", 15))
    assert (result.median, result.spread, result.met) == (20.0, 1.0, True)
    assert Result("time", "s", [2.0], Target("<=", 1)).met is False
    assert Result("time", "s", [2.0]).met is None
    assert [figure(value) for value in (0.0, 12_345.6, 12.3456)] == ["0", "12,346", "12.35"]
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
    assert visible_at([(3, 10.0), (9, 11.0)], 4) == 11.0


def test_a_results_file_names_no_machine(tmp_path: Path) -> None:
    bench = Bench(Options(runs=2))
    found = bench.repeat("work", lambda n: float(n))
    path = write_results("part", [Result("it", "s", found)], bench.log, facts(), tmp_path)
    text = path.read_text()
    content = json.loads(text)
    assert [run["title"] for run in content["runs"]] == ["work, run 1 of 2", "work, run 2 of 2"]
    assert content["versions"]["kafka"]
    assert content["machine"]["cores"]
    assert re.search(r'"/\w+/', text) is None


def test_a_table_shows_what_was_missed() -> None:
    out = io.StringIO()
    missed = Result("rate", "events/s", [10.0], Target(">=", 15), ("a note",))
    print_results("title", [missed, Result("other", "s", [1.0])], Console(file=out, width=100))
    assert "MISSED" in out.getvalue()
    assert "  - a note" in out.getvalue()


def test_the_command_line_knows_its_parts() -> None:
    options, wanted = parse(["--only", "b,c", "--quick"], ["a", "b", "c"])
    assert (options.quick, wanted) == (True, ["b", "c"])
    with pytest.raises(SystemExit):
        parse(["--only", "z"], ["a", "b"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "0"], "--runs is at least 1"),
        (["--events", "0"], "--events is at least 1"),
        (["--runs-file", "nowhere.ndjson"], "there is no file nowhere.ndjson"),
    ],
)
def test_a_senseless_option_ends_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words, ["a"])
    assert said in capsys.readouterr().err
    assert len({part.name for part in PARTS}) == len(PARTS)
