"""Which groups are a pipeline's."""

from sessionary.infra.lag.group_topics import is_service_group, pipeline_groups, topic_of_group
from sessionary.schemas.topics import TopicNames
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from sessionary.stream_processors.quotas.settings import QuotaSettings
from sessionary.stream_processors.settings import ProcessorSettings

NAMES = TopicNames.with_prefix("p")


def test_the_groups_are_those_of_the_roles() -> None:
    sinks = SinkSettings(topic_prefix="p")
    wanted = {ProcessorSettings(topic_prefix="p").group_id: NAMES.events}
    wanted |= {sinks.group_id(kind): getattr(NAMES, sink.topic) for kind, sink in SINKS.items()}
    assert pipeline_groups("p", []) == wanted


def test_extra_pipelines_and_clean_up_handlers_are_found() -> None:
    extra = SinkSettings(topic_prefix="p", pipeline="copy").group_id("history")
    known = [
        extra,
        "p.cleanup.acme:billing",
        "p.migration.acme:billing",
        "p.task-workers.acme:billing",
        "p.quotas",
        "p.lag",
        "p.sink.unknown",
        "q.processor",
        "p.processor.reader",
    ]
    found = pipeline_groups("p", known)
    services = ["p.cleanup.acme:billing", "p.migration.acme:billing", "p.task-workers.acme:billing"]
    assert list(found)[5:] == [*services[:2], "p.quotas", extra, services[2]]
    assert found[QuotaSettings(topic_prefix="p").group_id] == NAMES.quotas
    assert (found[extra], found["p.cleanup.acme:billing"]) == (NAMES.events, NAMES.cleanup)
    assert found["p.task-workers.acme:billing"] == NAMES.tasks
    assert found["p.migration.acme:billing"] == NAMES.migrations
    assert topic_of_group("p", "p.processor") == NAMES.events


def test_the_groups_of_services_are_none_of_the_pipeline_s_roles() -> None:
    services = ["p.cleanup.acme:billing", "p.migration.acme:billing", "p.task-workers.acme:billing"]
    groups = [*pipeline_groups("p", services), "q.cleanup.acme:billing"]
    assert [group for group in groups if is_service_group("p", group)] == services
