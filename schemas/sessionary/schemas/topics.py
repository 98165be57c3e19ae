"""The topics as data: names, size limits and retention.

`sessionary topics apply` brings a broker to this state. Settings without which results would be
wrong are `required`: a processor does not start without them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from sessionary.schemas.rules import NEWEST_RULES, REJECTED_BYTES_MAX, ROW_BYTES_MAX
from sessionary.schemas.types import RuleSet

_DAY_MS = 86_400_000
EVENT_BYTES_MAX = 1_310_720  # 1.25 MiB: one record of the events topic
# The size of one answer of a broker. librdkafka unpacks all of it at once, and gzip may unpack to a
# thousand times the size: so no answer has more than the largest batch, which always comes whole.
FETCH_BYTES_MAX = EVENT_BYTES_MAX
VALUE_BYTES_MAX = 1 << 20  # 1 MiB: a larger single value is sent by reference
_BEYOND_ROW_BYTES = 64 << 10  # a full row still takes rejections and deadlines
CHANGELOG_BYTES_MAX = ROW_BYTES_MAX + _BEYOND_ROW_BYTES
_BROKER_BYTES_MAX = 1_048_588  # Kafka's default for a topic that sets no `max.message.bytes`
RETENTION_MS = 7 * _DAY_MS
# A recovery that misses a deletion brings a deleted session back. It starts at most 12 h behind
# the changelog's end, at a saved position; so it may take another 12 h.
DELETE_RETENTION_MS = _DAY_MS
_REQUIRED = frozenset({"cleanup.policy", "unclean.leader.election.enable", "delete.retention.ms", "max.message.bytes"})
# A pipeline may keep more than it must, or keep it longer.
_LOWER_BOUNDS = frozenset({"delete.retention.ms", "max.message.bytes", "retention.ms"})
_FOR_EVER = "-1"


class TopicSpec(NamedTuple):
    """A topic as it should be. `config` has Kafka's own names and values.

    `required` names the settings that correctness needs.
    """

    name: str
    partitions: int
    config: dict[str, str]
    required: frozenset[str]

    def wrong_settings(self, found: Mapping[str, str | None]) -> dict[str, str]:
        """Return the settings of `config` that `found` does not satisfy, with the wanted values."""
        return {
            name: wanted for name, wanted in self.config.items() if not _is_satisfied(name, wanted, found.get(name))
        }

    def with_replicas(self, replication_factor: int) -> "TopicSpec":
        """Return the topic as it should be with so many replicas of each partition.

        With three or more, two must be in sync for a write to be acknowledged. With fewer, one is
        enough: a broker's default of two would stop all writes while one replica is away.
        """
        needed = "2" if replication_factor >= 3 else "1"
        return self._replace(config=self.config | {"min.insync.replicas": needed})


class TopicNames(NamedTuple):
    """The topic names of one prefix. Pipelines with different prefixes may share a broker."""

    events: str
    audit: str
    rejected: str
    cleanup: str
    tasks: str
    migrations: str
    batches: str
    changelog: str
    quotas: str
    quotas_changelog: str
    sink_rejected: str

    @classmethod
    def with_prefix(cls, prefix: str) -> "TopicNames":
        """Return the names `<prefix>.events`, `<prefix>.audit` and so on."""
        return cls(*(f"{prefix}.{field.replace('_', '-')}" for field in cls._fields))


SinkTopic = Literal["audit", "events", "rejected", "batches"]
# The field of `TopicNames` that each sink reads, by the sink's kind.
SINK_TOPICS: Final[Mapping[str, SinkTopic]] = MappingProxyType(
    {"audit": "audit", "history": "events", "rejected": "rejected", "batches": "batches"}
)


def _is_satisfied(name: str, wanted: str, found: str | None) -> bool:
    if found is None:
        return False
    if name in _LOWER_BOUNDS:
        return found == _FOR_EVER or int(found) >= int(wanted)
    return found == wanted


def topic_specs(prefix: str, partitions: int) -> list[TopicSpec]:
    """Return every topic of `prefix`.

    All have the same number of partitions, because outputs go to the partition of their source.
    """
    names, limits = TopicNames.with_prefix(prefix), bytes_limits(NEWEST_RULES)
    # A replica that lacks acknowledged records must not become the leader: sessions would change
    # behind the back of the state that was folded from them.
    common = {"unclean.leader.election.enable": "false"}
    deleted = {**common, "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
    # Processors judge by the broker's stamp, and latency is measured from it.
    stamped = {**deleted, "message.timestamp.type": "LogAppendTime"}
    compacted = {
        **common,
        "cleanup.policy": "compact",
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "max.message.bytes": str(limits["changelog"]),
        "message.timestamp.type": "LogAppendTime",
    }
    written = {
        name: {**stamped, "max.message.bytes": str(limits[field])}
        for field, name in names._asdict().items()
        if field in limits
    }
    configs = {
        **written,
        names.events: {**stamped, "max.message.bytes": str(EVENT_BYTES_MAX)},
        names.changelog: compacted,
        names.quotas_changelog: compacted,
        names.sink_rejected: {**stamped, "max.message.bytes": str(REJECTED_BYTES_MAX)},
    }
    # Elsewhere the broker's stamp only serves measurements: these two logs are folded.
    required = dict.fromkeys((names.events, names.quotas), _REQUIRED | {"message.timestamp.type"})
    return [
        TopicSpec(name, partitions, config, required.get(name, _REQUIRED) & config.keys())
        for name, config in configs.items()
    ]


def bytes_limits(rules: RuleSet) -> dict[str, int]:
    """Return the limit of one record of a processor by `rules`, in bytes, for each output topic.

    Topics are named by their field in `TopicNames`. The limit is that of the topic's
    `max.message.bytes`.
    """
    output = rules.output_bytes_max
    return {
        "audit": output,
        "rejected": rules.rejected_bytes_max,
        "cleanup": output,
        "tasks": output,
        "migrations": output,
        "batches": output,
        "changelog": rules.row_bytes_max + _BEYOND_ROW_BYTES,
        "quotas": output,
        "quotas_changelog": rules.row_bytes_max + _BEYOND_ROW_BYTES,
    }


def record_bytes_limits() -> dict[str, int]:
    """Return each topic's limit for one record in bytes, by the topic's field in `TopicNames`."""
    configs = {spec.name: spec.config for spec in topic_specs("", 1)}
    names = TopicNames.with_prefix("")._asdict()
    return {field: int(configs[name].get("max.message.bytes", _BROKER_BYTES_MAX)) for field, name in names.items()}
