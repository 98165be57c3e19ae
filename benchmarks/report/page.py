"""The tables of docs/performance.md, and the text between its marks."""

from collections.abc import Iterator, Mapping
from textwrap import wrap

from benchmarks.machine import ROOT
from benchmarks.measurements import MEASUREMENTS
from benchmarks.report.bar_plot import Bar, BarGroup, bar_plot
from benchmarks.report.comparisons import (
    COMPARISONS,
    Comparison,
    figures_of,
    measured_contenders,
    notes_of,
    standings,
)
from benchmarks.report.result_files import Figure, ResultFile
from benchmarks.results import format_figure
from docs.build.marked_text import replace_marked

PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"
Results = Mapping[str, ResultFile]
_COLUMNS = 100
_EQUAL = 1.0
_MANY = 10.0
# The shown versions of a result, and their names in the table.
_VERSIONS = {
    "python": "python",
    "interpreter_built_with": "built with",
    **{name: name for name in ("core", "java", "kafka", "librdkafka", "confluent-kafka", "quixstreams")},
    "faust-streaming": "faust-streaming",
}
_LETTERS = {part: measurement.letter for measurement in MEASUREMENTS for part in measurement.parts}
# If a measurement has a file for each build of the core: the file of the pure core.
_PURE_PARTS = {measurement.part("python") for measurement in MEASUREMENTS if measurement.by_build}


def with_results(text: str, results: Results) -> str:
    """Return the page with these results. Raises `ValueError` unless each mark is there once."""
    parts = {
        **{comparison.name: "\n".join(_comparison_lines(comparison, results)) for comparison in COMPARISONS},
        "losses": "\n".join(_loss_lines(results)),
        "targets": "\n".join(_target_lines(results)),
        "sources": "\n".join(_source_lines(results)),
    }
    for name, drawn in parts.items():
        text = replace_marked(text, name, f"\n{drawn}\n")
    return text


def plot_files(results: Results) -> dict[str, str]:
    """Return the plots of all comparisons that were measured, by file name."""
    return {
        f"{comparison.name}.svg": _draw_comparison(comparison, results[comparison.part])
        for comparison in COMPARISONS
        if _is_measured(comparison, results)
    }


def _is_measured(comparison: Comparison, results: Results) -> bool:
    result = results.get(comparison.part)
    return result is not None and len(measured_contenders(comparison, result)) > 1


def _draw_comparison(comparison: Comparison, result: ResultFile) -> str:
    contenders = measured_contenders(comparison, result)
    rows = [figures_of(result, contender) for contender in contenders]
    groups = []
    for place, measure in enumerate(comparison.measures):
        bars = [
            Bar(contender.label, row[place].median, row[place].low, row[place].high, is_ours=not number)
            for number, (contender, row) in enumerate(zip(contenders, rows, strict=True))
        ]
        better = "more is better" if measure.more_is_better else "less is better"
        groups.append(BarGroup(f"{measure.title} ({better})", rows[0][place].unit, bars))
    return bar_plot(comparison.title, groups)


def _comparison_lines(comparison: Comparison, results: Results) -> Iterator[str]:
    if not _is_measured(comparison, results):
        yield f'Not measured yet: `make bench ARGS="--only {comparison.letter}"`, then `make bench-report`.'
        return
    result = results[comparison.part]
    yield f"![{comparison.title}](plots/{comparison.name}.svg)"
    yield ""
    first = "the first" if comparison.is_among_ours else "ours"
    heads = [f"{measure.title} | {first} is better by" for measure in comparison.measures]
    yield f"| | {' | '.join(heads)} |"
    yield "|---|" + "---|---|" * len(comparison.measures)
    advantages = {(one.contender, one.measure): one.advantage for one in standings(comparison, result)}
    for contender in measured_contenders(comparison, result):
        cells = [contender.label]
        for measure, figure in zip(comparison.measures, figures_of(result, contender), strict=True):
            advantage = advantages.get((contender.label, measure))
            cells += [_spread_of(figure), "" if advantage is None else _times(advantage)]
        yield f"| {' | '.join(cells)} |"
    notes = notes_of(comparison, result)
    if notes:
        yield ""
    for note in notes:
        yield from wrap(note, _COLUMNS, initial_indent="- ", subsequent_indent="  ", break_long_words=False)


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= _MANY else f"{ratio:.2f} times"


def _spread_of(figure: Figure) -> str:
    low, high = format_figure(figure.low), format_figure(figure.high)
    return f"{format_figure(figure.median)} {figure.unit} ({low} to {high})"


def _loss_lines(results: Results) -> Iterator[str]:
    """Yield the comparisons that ours loses, the widest margin first."""
    others = (comparison for comparison in COMPARISONS if not comparison.is_among_ours)
    measured = [comparison for comparison in others if _is_measured(comparison, results)]
    found = [(one, comparison) for comparison in measured for one in standings(comparison, results[comparison.part])]
    worse = sorted((pair for pair in found if pair[0].advantage < _EQUAL), key=lambda pair: pair[0].advantage)
    yield "| where | better than ours | in | by |"
    yield "|---|---|---|---|"
    for one, comparison in worse:
        yield f"| {comparison.title} | {one.contender} | {one.measure.title} | {_times(1 / one.advantage)} |"


def _target_lines(results: Results) -> Iterator[str]:
    yield "| | figure | median | target | |"
    yield "|---|---|---|---|---|"
    for part, result in sorted(results.items(), key=lambda pair: (_LETTERS.get(pair[0], ""), pair[0])):
        build = ", pure core" if part in _PURE_PARTS else ""
        for figure in result.figures.values():
            if figure.target is not None:
                verdict = "met" if figure.met else "**missed**"
                amount = f"{format_figure(figure.median)} {figure.unit}"
                yield f"| {_LETTERS.get(part, '')} | {figure.name}{build} | {amount} | {figure.target} | {verdict} |"


def _source_lines(results: Results) -> Iterator[str]:
    yield "| | results file | measured | commit | runs | machine | versions |"
    yield "|---|---|---|---|---|---|---|"
    for part, result in sorted(results.items(), key=lambda pair: (_LETTERS.get(pair[0], ""), pair[0])):
        machine = result.machine
        place = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']:,} MiB, {machine['kernel']}"
        reported = result.versions
        versions = ", ".join(
            f"{name} {reported[version]}" for version, name in _VERSIONS.items() if version in reported
        )
        runs = max(figure.runs for figure in result.figures.values())
        cells = (f"`{part}.json`", result.finished_at[:10], result.commit, f"{runs}", place, versions)
        yield f"| {_LETTERS.get(part, '')} | {' | '.join(cells)} |"
