"""Page and plots show the figures of the results files, and no others."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.report import __main__ as program
from benchmarks.report.comparisons import COMPARISONS, standings
from benchmarks.report.page import PAGE, plot_files, with_results
from benchmarks.report.result_files import read_results
from benchmarks.results import Result, Target, write_results

FACTS = {
    "machine": {"cpu": "A CPU", "cores": 2, "memory_mib": 1_024, "kernel": "Linux 6"},
    "versions": {
        "python": "CPython 3.11.7",
        "java": "25",
        "core": "native",
        "interpreter_built_with": "PGO and LTO",
    },
    "source": {"commit": "0123456789ab", "dirty": False},
}
KEYED_COUNT = (
    Result("ours", "events/s", [90.0, 100.0, 110.0], notes=["a note"]),
    Result("ours, CPU", "s per 1M events", [5.0]),
    Result("streams-memory", "events/s", [200.0], Target(">=", 150.0)),
    Result("streams-memory, CPU", "s per 1M events", [20.0], Target("<=", 10.0)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the results of counting by key."""
    write_results("keyed_count", KEYED_COUNT, [], FACTS, tmp_path)
    return tmp_path


def test_the_page_has_medians_spreads_and_where_we_lose(folder: Path) -> None:
    page = with_results(PAGE.read_text("utf-8"), read_results(folder))
    assert "| sessionary | 100 events/s (90 to 110) |" in page
    assert "| Kafka Streams, in memory | 200 events/s (200 to 200) | 0.50 times | 20 s per 1M events" in page
    assert "| Counting by key | Kafka Streams, in memory | events per second | 2.00 times |" in page
    assert "Counting by key | Kafka Streams, in memory | CPU" not in page  # there we win
    assert "- a note" in page
    assert "| a | streams-memory, CPU | 20 s per 1M events | <= 10 | **missed** |" in page
    assert "| a | `keyed_count.json` |" in page
    assert "| 0123456789ab | 3 | A CPU, 2 cores, 1,024 MiB, Linux 6 | python CPython 3.11.7, built with" in page
    assert "built with PGO and LTO, core native, java 25 |" in page


def test_what_was_not_measured_is_said_and_not_drawn(folder: Path) -> None:
    results = read_results(folder)
    page = with_results(PAGE.read_text("utf-8"), results)
    assert 'Not measured yet: `make bench ARGS="--only s"`' in page
    assert set(plot_files(results)) == {"keyed_count.svg"}


def test_a_contender_without_figures_is_left_out(folder: Path) -> None:
    (comparison,) = (one for one in COMPARISONS if one.name == "keyed_count")
    found = list(standings(comparison, read_results(folder)["keyed_count"]))
    assert [(one.contender, one.advantage) for one in found] == [
        ("Kafka Streams, in memory", 0.5),
        ("Kafka Streams, in memory", 4.0),
    ]


def test_a_plot_has_a_bar_for_each_figure_that_fits(folder: Path) -> None:
    drawn = plot_files(read_results(folder))["keyed_count.svg"]
    picture = ElementTree.fromstring(drawn)
    width, height = (float(number) for number in picture.attrib["viewBox"].split()[2:])
    bars = [element for element in picture.iter() if element.attrib.get("class") in ("ours", "other")]
    assert [element.attrib["class"] for element in bars] == ["ours", "other", "ours", "other"]
    lengths = [float(element.attrib["width"]) for element in bars]
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=0.01)
    assert lengths[3] == pytest.approx(4 * lengths[2], rel=0.01)
    for element in bars:
        assert float(element.attrib["x"]) + float(element.attrib["width"]) < width
        assert float(element.attrib["y"]) + float(element.attrib["height"]) < height


def test_a_bar_that_is_far_longer_than_ours_is_cut(folder: Path) -> None:
    cost = (*KEYED_COUNT[:3], Result("streams-memory, CPU", "s per 1M events", [300.0]))
    write_results("keyed_count", cost, [], FACTS, folder)
    drawn = plot_files(read_results(folder))["keyed_count.svg"]
    assert drawn.count('class="gap"') == 1
    assert ">300<" in drawn


def test_drawing_writes_page_and_plots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, plots, results = folder / "page.md", folder / "plots", read_results(folder)
    monkeypatch.setattr(program, "PAGE", page)
    monkeypatch.setattr(program, "PLOTS", plots)
    monkeypatch.setattr(program, "read_results", lambda: results)
    assert program.main() == 1  # there is no page
    page.write_text(PAGE.read_text("utf-8"))
    assert program.main() == 0
    assert page.read_text("utf-8") == with_results(PAGE.read_text("utf-8"), results)
    assert {path.name: path.read_text("utf-8") for path in plots.iterdir()} == plot_files(results)


def test_a_note_stands_under_the_comparisons_of_its_figure(folder: Path) -> None:
    rates = ("200", "2,000")
    names = [(f"{rate}/s, {name}", f"of {rate}/s") for rate in rates for name in ("p50", "p99")]
    hops = [f"{rate}/s, baseline {name}" for rate in rates for name in ("p50", "p99")]
    figures = [
        *(Result(name, "ms", [1.0], notes=[note]) for name, note in names),
        *(Result(name, "ms", [1.0]) for name in hops),
        Result("senders' delay", "ms", [1.0], notes=["of all rates"]),
    ]
    write_results("latency", figures, [], FACTS, folder)
    page = with_results(PAGE.read_text("utf-8"), read_results(folder))
    for rate, other in (rates, reversed(rates)):
        mark = f"<!-- latency_{rate.replace(',', '')}: "
        part = page.partition(f"{mark}begin")[2].partition(f"{mark}end")[0]
        assert f"- of {rate}/s" in part
        assert f"of {other}/s" not in part
        assert "- of all rates" in part


def test_this_commit_and_the_other_one_are_compared_in_rate_and_cost(folder: Path) -> None:
    commit = (
        Result("full job, ours", "events/s", [300.0]),
        Result("full job, ours, CPU per event", "µs", [2.0]),
        Result("full job, theirs", "events/s", [100.0]),
        Result("full job, theirs, CPU per event", "µs", [8.0]),
    )
    client = (
        *(Result(f"emit, {rate}, p50, ours", "µs", [10.0]) for rate in ("flood", "200/s")),
        *(Result(f"emit, {rate}, p50, theirs", "µs", [theirs]) for rate, theirs in (("flood", 20.0), ("200/s", 5.0))),
    )
    sinks = (Result("sinks, ours", "rows/s", [30.0]), Result("sinks, theirs", "rows/s", [20.0]))
    for part, found in (("base_commit", commit), ("base_client", client), ("base_sinks", sinks)):
        write_results(part, found, [], FACTS, folder)
    results = read_results(folder)
    page = with_results(PAGE.read_text("utf-8"), results)
    assert "| the other commit | 100 events/s (100 to 100) | 3.00 times | 8 µs (8 to 8) | 4.00 times |" in page
    assert "| the other commit | 20 µs (20 to 20) | 2.00 times | 5 µs (5 to 5) | 0.50 times |" in page
    assert "| the other commit | 20 rows/s (20 to 20) | 1.50 times |" in page
    assert "| The client's call beside another commit's | the other commit | a call at 200/s | 2.00 times |" in page
    assert {"base_commit.svg", "base_client.svg", "base_sinks.svg"} <= set(plot_files(results))


def test_two_processors_stand_beside_one_and_lose_to_nobody(folder: Path) -> None:
    found = [
        figure
        for number, rate, cost in (("one processor", 100.0, 10.0), ("two processors", 150.0, 20.0))
        for figure in (Result(number, "events/s", [rate]), Result(f"{number}, CPU per event", "µs", [cost]))
    ]
    write_results("two_workers", found, [], FACTS, folder)
    page = with_results(PAGE.read_text("utf-8"), read_results(folder))
    assert "| | events per second | the first is better by | CPU per event | the first is better by |" in page
    assert "| one processor | 100 events/s (100 to 100) | 1.50 times | 10 µs (10 to 10) | 0.50 times |" in page
    assert "| Two processors on one machine | one processor |" not in page
    assert "| Counting by key | Kafka Streams, in memory | events per second | 2.00 times |" in page


def test_the_targets_of_many_partitions_and_of_the_pure_core_are_shown(folder: Path) -> None:
    idle = Result("256 idle partitions, CPU", "cores", [0.3], Target("<=", 0.25))
    ratio = "full job, events per second: ours / theirs"
    write_results("many_partitions", [idle], [], FACTS, folder)
    write_results("base_commit", [Result(ratio, "ratio", [2.3], Target(">=", 2.2))], [], FACTS, folder)
    write_results("base_commit_pure", [Result(ratio, "ratio", [0.9], Target(">=", 1.0))], [], FACTS, folder)
    page = with_results(PAGE.read_text("utf-8"), read_results(folder))
    assert "| p | 256 idle partitions, CPU | 0.3 cores | <= 0.25 | **missed** |" in page
    assert f"| v | {ratio} | 2.3 ratio | >= 2.2 | met |" in page
    assert f"| v | {ratio}, pure core | 0.9 ratio | >= 1 | **missed** |" in page
    assert "| v | `base_commit_pure.json` |" in page
