"""Which topics must change, and where their replicas go."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.infra import topics as module
from sessionary.infra.topics import ReplicationDiffers, TopicState, apply_topics, reassignment_plan, topic_changes
from sessionary.schemas.errors import Invalid
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import TopicSpec, topic_specs

SPECS = topic_specs("p", 4)


def state_of(spec: TopicSpec, replicas: int = 1, partitions: int = 4, *, but: Mapping[str, str] = {}) -> TopicState:
    """Return a topic as it should be, but for some settings."""
    settings = {**spec.with_replicas(replicas).config, **but}
    return TopicState([list(range(1, replicas + 1))] * partitions, settings)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_topics_as_they_should_be_need_nothing(replicas: int) -> None:
    assert topic_changes(SPECS, {spec.name: state_of(spec, replicas) for spec in SPECS}, 1) == []


def test_a_missing_topic_is_created_and_a_differing_setting_set() -> None:
    found = {spec.name: state_of(spec, 3) for spec in SPECS[1:]}
    found[SPECS[1].name] = state_of(SPECS[1], 3, but={"retention.ms": "1"})
    first, second = topic_changes(SPECS, found, 3)
    assert (first.spec.name, first.replicas, first.config["min.insync.replicas"]) == (SPECS[0].name, 3, "2")
    assert first.describe_change() == f"{SPECS[0].name}: created with 4 partitions, replication factor 3"
    assert (second.replicas, dict(second.config)) == (None, {"retention.ms": SPECS[1].config["retention.ms"]})
    assert second.describe_change() == f"{SPECS[1].name}: retention.ms = {SPECS[1].config['retention.ms']}"


@pytest.mark.parametrize(
    ("replicas", "found", "wanted"), [(1, "2", "1"), (2, "2", "1"), (3, "1", "2"), (4, "1", "2"), (3, "2", None)]
)
def test_replicas_in_sync_are_never_more_than_there_are(replicas: int, found: str, wanted: str | None) -> None:
    states = {spec.name: state_of(spec, replicas, but={"min.insync.replicas": found}) for spec in SPECS}
    changes = topic_changes(SPECS, states, 1)
    assert [dict(change.config) for change in changes] == ([{"min.insync.replicas": wanted}] * 11 if wanted else [])


def test_a_partition_with_fewer_replicas_decides_for_its_topic() -> None:
    state = TopicState([[1, 2, 3], [1]], {**SPECS[0].config, "min.insync.replicas": "2"})
    (change,) = topic_changes([SPECS[0]._replace(partitions=2)], {SPECS[0].name: state}, 3)
    assert dict(change.config) == {"min.insync.replicas": "1"}


@pytest.mark.parametrize("more", [{"max.message.bytes": "9000000"}, {"retention.ms": "-1"}, {"retention.ms": "9" * 12}])
def test_a_larger_limit_is_left_as_it_is(more: dict[str, str]) -> None:
    specs = [spec for spec in SPECS if spec.config.keys() >= more.keys()]
    assert topic_changes(specs, {spec.name: state_of(spec, but=more) for spec in specs}, 1) == []


@pytest.mark.parametrize("partitions", [3, 5])
def test_another_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(Invalid, match="SESSIONARY_PARTITIONS"):
        topic_changes(SPECS, {SPECS[0].name: state_of(SPECS[0], partitions=partitions)}, 1)


def test_more_replicas_are_spread_and_leaders_stay() -> None:
    plan = reassignment_plan({"t": TopicState([[1], [2], [3], [2, 3, 1]], {})}, [3, 1, 2, 4], 3)
    assert plan is not None
    assert plan == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [1, 2, 3]},
            {"topic": "t", "partition": 1, "replicas": [2, 3, 4]},
            {"topic": "t", "partition": 2, "replicas": [3, 4, 1]},
        ],
    }


def test_fewer_replicas_keep_the_preferred_leader_and_enough_need_nothing() -> None:
    plan = reassignment_plan({"t": TopicState([[2, 3, 1], [3]], {})}, [1, 2, 3], 1)
    assert plan == {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2]}]}
    assert reassignment_plan({"t": TopicState([[2], [3]], {})}, [1, 2, 3], 1) is None


@pytest.mark.parametrize(("replicas", "wanted", "is_warned"), [(3, 1, True), (3, 2, False), (1, 3, False)])
def test_fewer_replicas_than_a_write_needs_are_not_moved_before_it_needs_fewer(
    monkeypatch: pytest.MonkeyPatch, replicas: int, wanted: int, is_warned: bool
) -> None:
    states = {spec.name: state_of(spec, replicas) for spec in SPECS}
    monkeypatch.setattr(module, "_admin_client", lambda _settings: None)
    monkeypatch.setattr(module, "_describe_topics", lambda _admin, _specs: (states, [1, 2, 3]))
    with pytest.raises(ReplicationDiffers) as raised:
        apply_topics(KafkaSettings(topic_prefix="p", partitions=4), wanted)
    assert (f"First set min.insync.replicas={wanted}" in str(raised.value)) == is_warned


def test_a_topic_that_exists_although_it_was_not_listed_is_not_reported_as_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(topics: Sequence[SimpleNamespace], operation_timeout: float) -> dict[str, Future[None]]:
        answers = {topic.topic: Future[None]() for topic in topics}
        for name, answer in answers.items():
            if name.endswith(".audit"):
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
            else:
                answer.set_result(None)
        return answers

    monkeypatch.setattr(module, "_admin_client", lambda _settings: SimpleNamespace(create_topics=create))
    monkeypatch.setattr(module, "_describe_topics", lambda _admin, _specs: ({}, [1, 2, 3, 4]))
    applied = apply_topics(KafkaSettings(topic_prefix="p", partitions=4))
    assert (applied.replication_factor, applied.brokers) == (3, 4)
    assert [line.split(": ")[0] for line in applied.changes if "exists, but was not listed" in line] == ["p.audit"]
    assert sum(line.endswith("created with 4 partitions, replication factor 3") for line in applied.changes) == 10
