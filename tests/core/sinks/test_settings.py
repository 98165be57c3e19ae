from sessionary.sinks.settings import SinkSettings


def test_groups_are_named_by_prefix_kind_and_pipeline() -> None:
    assert SinkSettings().group_id("audit") == "sessionary.sink.audit"
    assert SinkSettings(topic_prefix="x", pipeline="eu").group_id("audit") == "x.sink.audit.eu"
