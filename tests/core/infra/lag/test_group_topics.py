"""Which groups are a pipeline's."""

from sessionary.infra.lag.group_topics import pipeline_groups, topic_of_group
from sessionary.schemas.topics import TopicNames
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
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
        "p.task-workers.acme:billing",
        "p.lag",
        "p.sink.unknown",
        "q.processor",
        "p.processor.reader",
    ]
    found = pipeline_groups("p", known)
    assert list(found)[5:] == ["p.cleanup.acme:billing", extra, "p.task-workers.acme:billing"]
    assert (found[extra], found["p.cleanup.acme:billing"]) == (NAMES.events, NAMES.cleanup)
    assert found["p.task-workers.acme:billing"] == NAMES.tasks
    assert topic_of_group("p", "p.processor") == NAMES.events
