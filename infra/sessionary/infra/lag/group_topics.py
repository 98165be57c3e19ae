"""Which groups belong to a pipeline, and which topics they read; pure."""

from collections.abc import Iterable, Mapping

from sessionary.schemas.topics import SINK_TOPICS, TopicNames


def topic_of_group(prefix: str, group: str) -> str | None:
    """Return the topic that a group of the pipeline `prefix` reads; None for any other group."""
    names = TopicNames.with_prefix(prefix)
    if group == f"{prefix}.processor":
        return names.events
    if group == f"{prefix}.quotas":
        return names.quotas
    if group.startswith(f"{prefix}.cleanup."):
        return names.cleanup
    if group.startswith(f"{prefix}.task-workers."):
        return names.tasks
    if group.startswith(f"{prefix}.migration."):
        return names.migrations
    if group.startswith(start := f"{prefix}.sink."):
        kind = group.removeprefix(start).partition(".")[0]  # an extra pipeline's name follows
        return getattr(names, SINK_TOPICS[kind]) if kind in SINK_TOPICS else None
    return None


def is_sink_group(group: str, topic: str) -> bool:
    """Return whether a group that reads a topic of its pipeline is a sink's."""
    return group.startswith(f"{topic.rpartition('.')[0]}.sink.")


def is_service_group(prefix: str, group: str) -> bool:
    """Return whether a group is a service's: its clients that answer requests, or its task workers.

    It has no members while the service is off, which is no fault of the pipeline.
    """
    return group.startswith((f"{prefix}.cleanup.", f"{prefix}.task-workers.", f"{prefix}.migration."))


def pipeline_groups(prefix: str, known: Iterable[str]) -> Mapping[str, str]:
    """Return `{group: topic}`: the groups that a pipeline must have, then its others in `known`.

    `known`: the groups that Kafka has. The groups of extra pipelines and of services are found only
    there.
    """
    needed = (f"{prefix}.processor", *(f"{prefix}.sink.{kind}" for kind in SINK_TOPICS))
    topics = ((group, topic_of_group(prefix, group)) for group in (*needed, *sorted(known)))
    return {group: topic for group, topic in topics if topic is not None}
