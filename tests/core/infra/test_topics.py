"""Which topics must change."""

import pytest

from sessionary.infra.topics import TopicState, topic_changes
from sessionary.schemas.errors import Invalid
from sessionary.schemas.topics import topic_specs


def test_topics_as_they_should_be_need_nothing() -> None:
    specs = topic_specs("p", 4)
    assert topic_changes(specs, {spec.name: TopicState(4, dict(spec.config)) for spec in specs}) == []


def test_a_missing_topic_is_created_and_a_differing_setting_set() -> None:
    specs = topic_specs("p", 4)
    found = {spec.name: TopicState(4, dict(spec.config)) for spec in specs[1:]}
    found[specs[1].name] = TopicState(4, {**specs[1].config, "retention.ms": "1"})
    first, second = topic_changes(specs, found)
    assert (first.create, first.spec) == (True, specs[0])
    assert (second.create, dict(second.config)) == (False, {"retention.ms": specs[1].config["retention.ms"]})
    assert "retention.ms" in second.describe_change()


def test_a_larger_limit_is_left_as_it_is() -> None:
    specs = topic_specs("p", 4)
    found = {spec.name: TopicState(4, {**spec.config, "max.message.bytes": "9000000"}) for spec in specs}
    assert topic_changes(specs, found) == []


@pytest.mark.parametrize("partitions", [3, 5])
def test_another_number_of_partitions_is_refused(partitions: int) -> None:
    specs = topic_specs("p", 4)
    with pytest.raises(Invalid, match="SESSIONARY_PARTITIONS"):
        topic_changes(specs, {specs[0].name: TopicState(partitions, specs[0].config)})
