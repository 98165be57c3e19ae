"""The list of metrics, made from the roles' modules.

Each module `metrics.py` has a `HELP` with names and sentences. Types and labels are those of the
metrics that the roles serve: taken from their registries, and for the lag exporter from the
families that it makes of a sample of its state.
"""

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from sessionary.producers.prometheus_metrics import ClientCollector
from sessionary.producers.testing import memory_client
from sessionary.sinks.metrics import SinkMetrics
from sessionary.stream_processors.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ROLES: Final = {
    "client": "in the agent's process, by `ClientCollector` or `observe_clients`; by a task worker as\n"
    "`/metrics` at `SESSIONARY_METRICS_PORT`, if the port is set",
    "processor": "as `/metrics` of the control API",
    "sink": "as `/metrics` at `SESSIONARY_METRICS_PORT`, if the port is set",
    "lag": "as `/metrics` of `sessionary serve lag-exporter`, port 9308 by default",
    "integrity": "as `/metrics` of `sessionary serve lag-exporter`",
    "kpi": "as `/metrics` of `sessionary serve lag-exporter`",
    "clickhouse": "as `/metrics` of `sessionary serve lag-exporter`",
}
_HEAD = """\
# Metrics

Each role serves its metrics to Prometheus, and also `/healthz` (liveness) and `/readyz`
(readiness). `sessionary up` runs all roles except task workers, the role quotas with `--quotas`,
and lists the addresses in `<data>/prometheus.json`. `make docs` generates these tables from the
roles' modules, and a test compares the two.

| role | serves at |
|---|---|
| processor | its control API: `SESSIONARY_API_HOST`, `SESSIONARY_API_PORT` |
| sink, task worker | `SESSIONARY_METRICS_HOST`, `SESSIONARY_METRICS_PORT`, if the port is set |
| lag exporter | `SESSIONARY_METRICS_HOST`, `SESSIONARY_METRICS_PORT`, by default 9308 |

A series exists only while its value is known: the series of a partition ends when the partition
moves to another process. No label has a value from an agent's data, except tenant and service in
the groups of `sessionary_lag_*`: `<prefix>.cleanup.<tenant>:<service>` (clean-up handlers),
`<prefix>.task-workers.<tenant>:<service>` and `<prefix>.migration.<tenant>:<service>`. Such a group
has no members while its service is off, so its alerts are tickets; the other groups are the
pipeline's roles, and their alerts are pages.

In OpenTelemetry the client's metrics are named `sessionary.client.*`, with dots and without the
unit at the end; the unit is the instrument's. The attributes are the labels.
"""
_COLUMNS = "| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n"

# The unit of a metric by the end of its name without `_total`; the first that matches.
_UNITS: Final = (
    (r"_timestamp_seconds$", "seconds since the epoch"),
    (r"(_|^)records_per_second$", "records per second"),
    (r"(_|^)seconds$", "seconds"),
    (r"(_|^)bytes(_max)?$", "bytes"),
    (r"(_|^)(ratio|window_used)$", "share, 1 = all"),
    (r"(_|^)(blocked|up|state)$", "0 or 1"),
    (r"(_|^)offset$", "offset"),
    (r"^rejected$", "records"),
)
# Counted things: the last of these words in a name is its unit.
_COUNTED: Final = re.compile(
    r"(?:^|_)(accounts|artifacts|batches|blocks|calls|claims|clients|dead_letters|errors|events|failures|findings|followers|tombstones|mismatches|partitions|rebalances|runs"
    r"|records|replays|retries|rows|sessions|outages|ticks|timers|transitions)(?=_|$)"
)


class ListedMetric(NamedTuple):
    """One metric of a role. `unit` is None if its name tells none."""

    name: str
    role: str
    type: str
    labels: tuple[str, ...]
    unit: str | None
    sentence: str


def role_of(name: str) -> str | None:
    """Return the role that a metric's name begins with, None if it begins with none."""
    match = re.match(rf"sessionary_({'|'.join(ROLES)})_", name)
    return match[1] if match else None


def unit_of(name: str) -> str | None:
    """Return a metric's unit by its name, None if that follows no rule."""
    rest = name.removeprefix(f"sessionary_{role_of(name)}_").removesuffix("_total")
    for pattern, unit in _UNITS:
        if re.search(pattern, rest):
            return unit
    counted = _COUNTED.findall(rest)
    return counted[-1].replace("_", " ") if counted else None


def metrics_modules() -> list[ModuleType]:
    """Return the modules that list metrics."""
    paths = sorted(ROOT.glob("*/sessionary/**/metrics.py"))
    return [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts[1:])) for path in paths]


def metric_helps() -> dict[str, str]:
    """Return the sentence of every metric."""
    return {name: sentence for module in metrics_modules() for name, sentence in module.HELP.items()}


def expression_metrics(expression: str) -> set[str]:
    """Return the metrics that an expression names; those of a histogram without their suffix."""
    names = re.findall(r"\bsessionary_\w+", re.sub(r'"[^"]*"', "", expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def listed_metrics() -> list[ListedMetric]:
    """Return every metric by role, within a role in the order of its `HELP`.

    Raises `KeyError` if a metric is listed and not served.
    """
    served = dict(_served_families())
    found = [
        ListedMetric(name, role_of(name) or "", *served[name], unit_of(name), sentence)
        for module in metrics_modules()
        for name, sentence in module.HELP.items()
    ]
    order = list(ROLES)
    return sorted(found, key=lambda metric: order.index(metric.role) if metric.role in order else len(order))


def _served_families() -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Yield name, and type and labels, of each metric that a role makes."""
    for registry in (Metrics().registry, SinkMetrics("audit", "group").registry):
        yield from _registry_families(registry)
    client, _ = memory_client()
    yield from _name_families(ClientCollector(client).collect())
    client.close()
    for module in metrics_modules():
        collect = getattr(module, "collect_families", None)
        if collect is not None:
            (state,) = inspect.signature(collect).parameters
            yield from _name_families(collect(sample_of(typing.get_type_hints(collect)[state])))


def _registry_families(registry: CollectorRegistry) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            kind = str(collector._type)
            yield _full_name(collector._name, kind), (kind, tuple(collector._labelnames))
        else:
            yield from _name_families(collector.collect())


def _name_families(families: Iterable[Metric]) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    for family in families:
        labels: Sequence[str] = getattr(family, "_labelnames", ())
        yield _full_name(family.name, family.type), (family.type, tuple(labels))


def _full_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def sample_of(kind: Any) -> Any:
    """Return a value of a type: each optional part is there, each collection has one element.

    Raises `TypeError` for a type that it does not know.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return sample_of(next(part for part in arguments if part is not type(None)))
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(sample_of(part) for part in arguments if part is not Ellipsis)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {sample_of(arguments[0]): sample_of(arguments[1])}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return [sample_of(arguments[0])]
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return kind(*(sample_of(hints[name]) for name in kind._fields))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if kind in (bool, int, float, str):
        return kind(1)
    raise TypeError(f"no sample of {kind} is known: add it here")


def metrics_page() -> str:
    """Return the whole page."""
    listed = listed_metrics()
    parts = [_HEAD]
    for role, place in ROLES.items():
        rows = [_row(metric) for metric in listed if metric.role == role]
        if rows:
            parts.append(f"\n## sessionary_{role}_\n\nServed {place}.\n\n{_COLUMNS}{''.join(rows)}")
    return "".join(parts)


def _row(metric: ListedMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    sentence = re.sub(r"\s+", " ", metric.sentence).replace("|", "\\|")
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit} | {sentence} |\n"


def write() -> Iterable[Path]:
    """Bring the page up to date. Returns its path."""
    PAGE.write_text(metrics_page(), "utf-8")
    return (PAGE,)
