"""The comparisons: engines, their figures in the results, and the better direction."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.report.result_files import Figure, ResultFile


class Measure(NamedTuple):
    """One measure of a comparison, in the unit that its figures have."""

    title: str
    more_is_better: bool


class Contender(NamedTuple):
    """One engine. `figures`: the names of its figures, one for each measure."""

    label: str
    figures: tuple[str, ...]


class Comparison(NamedTuple):
    """One plot and one table. The first contender is ours.

    `is_among_ours`: all contenders are ours, so no loss is counted.
    """

    name: str
    title: str
    part: str  # of the results file
    letter: str  # of the measurement
    measures: tuple[Measure, ...]
    contenders: tuple[Contender, ...]
    is_among_ours: bool = False


class Standing(NamedTuple):
    """Ours beside another contender in one measure; below 1 ours is the worse one."""

    contender: str
    measure: Measure
    advantage: float  # ratio of the medians


_RATE = Measure("events per second", more_is_better=True)
_COST = Measure("CPU per event", more_is_better=False)
_P50 = Measure("median", more_is_better=False)
_P99 = Measure("99 % within", more_is_better=False)
_OURS = "sessionary"
_STREAMS = (("streams-memory", "Kafka Streams, in memory"), ("streams-rocksdb", "Kafka Streams, RocksDB"))


def _keyed_count() -> Comparison:
    engines = (("ours", _OURS), *_STREAMS, ("quix", "Quix Streams"), ("faust", "Faust"))
    contenders = tuple(Contender(label, (name, f"{name}, CPU")) for name, label in engines)
    cost = Measure("CPU per million events", more_is_better=False)
    return Comparison("keyed_count", "Counting by key", "keyed_count", "a", (_RATE, cost), contenders)


def _streams_full_job(live: int) -> Comparison:
    names = [(f"{name}, {live:,} live sessions", label) for name, label in (("ours", _OURS), *_STREAMS)]
    contenders = tuple(Contender(label, (name, f"{name}, CPU per event")) for name, label in names)
    title = f"The full job beside Kafka Streams, {live:,} live sessions"
    return Comparison(f"streams_full_job_{live}", title, "streams_full_job", "s", (_RATE, _COST), contenders)


def _quix_core() -> Comparison:
    core = "the core in Quix Streams, rows in"
    contenders = (
        Contender(_OURS, ("our processor in the same rounds", "our processor, CPU per event")),
        *(
            Contender(f"Quix Streams, rows in {form}", (f"{core} {form}", f"{core} {form}, CPU per event"))
            for form in ("avro", "pickle")
        ),
    )
    return Comparison("quix_core", "The same core in Quix Streams", "quix_core", "b", (_RATE, _COST), contenders)


def _latency(rate: str) -> Comparison:
    contenders = (
        Contender(_OURS, (f"{rate}/s, p50", f"{rate}/s, p99")),
        Contender("bare transactional hop", (f"{rate}/s, baseline p50", f"{rate}/s, baseline p99")),
        Contender(
            "the hop, at our commit interval", (f"{rate}/s, paced baseline p50", f"{rate}/s, paced baseline p99")
        ),
    )
    name = f"latency_{rate.replace(',', '')}"
    return Comparison(name, f"Latency at {rate} events per second", "latency", "c", (_P50, _P99), contenders)


def _two_workers() -> Comparison:
    contenders = tuple(
        Contender(number, (number, f"{number}, CPU per event")) for number in ("two processors", "one processor")
    )
    title, measures = "Two processors on one machine", (_RATE, _COST)
    return Comparison("two_workers", title, "two_workers", "b", measures, contenders, is_among_ours=True)


def _beside_base(part: str, title: str, measures: tuple[Measure, ...], figures: tuple[str, ...]) -> Comparison:
    """Return this commit compared with another; `figures`: by measure, with {} for the owner."""
    contenders = tuple(
        Contender(label, tuple(figure.format(whose) for figure in figures))
        for label, whose in (("this commit", "ours"), ("the other commit", "theirs"))
    )
    return Comparison(part, f"{title} beside another commit's", part, "v", measures, contenders)


def _base_commit() -> Comparison:
    figures = ("full job, {}", "full job, {}, CPU per event")
    return _beside_base("base_commit", "The full job", (_RATE, _COST), figures)


def _base_client() -> Comparison:
    measures = tuple(Measure(title, more_is_better=False) for title in ("a call in a flood", "a call at 200/s"))
    return _beside_base("base_client", "The client's call", measures, ("emit, flood, p50, {}", "emit, 200/s, p50, {}"))


def _base_sinks() -> Comparison:
    measures = (Measure("rows per second", more_is_better=True),)
    return _beside_base("base_sinks", "The sinks", measures, ("sinks, {}",))


COMPARISONS: Sequence[Comparison] = (
    _keyed_count(),
    _streams_full_job(1_000),
    _streams_full_job(1_000_000),
    _quix_core(),
    _two_workers(),
    _base_commit(),
    _base_client(),
    _base_sinks(),
    *(_latency(rate) for rate in ("200", "2,000", "8,000")),
)


def figures_of(result: ResultFile, contender: Contender) -> list[Figure]:
    """Return a contender's figures, one for each measure. Raises `KeyError` if one is missing."""
    return [result.figures[name] for name in contender.figures]


def measured_contenders(comparison: Comparison, result: ResultFile) -> list[Contender]:
    """Return the contenders that have figures: one that could not be installed has none."""
    return [one for one in comparison.contenders if all(name in result.figures for name in one.figures)]


def notes_of(comparison: Comparison, result: ResultFile) -> list[str]:
    """Return a results file's notes, without those on figures that only other comparisons show."""
    own, others = set[str](), set[str]()
    for each in COMPARISONS:
        if each.part == comparison.part:
            names = {name for contender in each.contenders for name in contender.figures}
            (own if each == comparison else others).update(names)
    shown = (figure for name, figure in result.figures.items() if name in own or name not in others)
    return list(dict.fromkeys(note for figure in shown for note in figure.notes))


def standings(comparison: Comparison, result: ResultFile) -> Iterator[Standing]:
    """Yield the standing of ours against each other contender in each measure."""
    ours, *others = measured_contenders(comparison, result)
    mine = figures_of(result, ours)
    for other in others:
        theirs = figures_of(result, other)
        for measure, one, its in zip(comparison.measures, mine, theirs, strict=True):
            advantage = one.median / its.median if measure.more_is_better else its.median / one.median
            yield Standing(other.label, measure, advantage)
