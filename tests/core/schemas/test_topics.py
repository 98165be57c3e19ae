"""Which settings of a topic satisfy what correctness needs."""

import pytest

from sessionary.schemas.topics import DELETE_RETENTION_MS, TopicNames, TopicSpec, topic_specs
from sessionary.stream_processors.store.stores import SAVED_AGE_MAX_S

NAMES = TopicNames.with_prefix("p")
SPECS = {spec.name: spec for spec in topic_specs("p", 4)}


def wrong(topic: str, **found: str | None) -> set[str]:
    spec: TopicSpec = SPECS[topic]
    settings = {name.replace("_", "."): value for name, value in found.items()}
    return set(spec.wrong_settings({**spec.config, **settings}))


def test_every_topic_names_what_its_correctness_needs() -> None:
    assert set(SPECS) == set(NAMES)
    for spec in SPECS.values():
        assert spec.config["unclean.leader.election.enable"] == "false"
        assert int(spec.config["max.message.bytes"]) > 1_048_588, f"Kafka's default is too small for {spec.name}"
        assert {"cleanup.policy", "unclean.leader.election.enable", "max.message.bytes"} <= spec.required
    assert SPECS[NAMES.events].config["message.timestamp.type"] == "LogAppendTime"
    assert SPECS[NAMES.quotas].config["message.timestamp.type"] == "LogAppendTime"
    folded, compacted = {NAMES.events, NAMES.quotas}, {NAMES.changelog, NAMES.quotas_changelog}
    assert {name for name, spec in SPECS.items() if "message.timestamp.type" in spec.required} == folded
    assert {name for name, spec in SPECS.items() if "delete.retention.ms" in spec.required} == compacted


def test_every_topic_has_an_end_of_its_records() -> None:
    """By age, or in the changelog by the deletion of a row that vanishes."""
    ends = {"delete": "retention.ms", "compact": "delete.retention.ms"}
    endless = [
        name for name, spec in SPECS.items() if int(spec.config.get(ends[spec.config["cleanup.policy"]], -1)) < 0
    ]
    assert endless == []


def test_a_topic_as_specified_satisfies() -> None:
    assert {topic for topic in NAMES if wrong(topic)} == set()


@pytest.mark.parametrize(
    ("topic", "policy"), [("events", "compact"), ("events", "compact,delete"), ("changelog", "delete")]
)
def test_another_clean_up_is_wrong(topic: str, policy: str) -> None:
    assert wrong(getattr(NAMES, topic), cleanup_policy=policy) == {"cleanup.policy"}


def test_sizes_and_times_are_lower_bounds() -> None:
    assert wrong(NAMES.audit, max_message_bytes="1048588") == {"max.message.bytes"}
    assert wrong(NAMES.audit, max_message_bytes="8000000") == set()
    assert wrong(NAMES.changelog, delete_retention_ms="3600000") == {"delete.retention.ms"}
    assert wrong(NAMES.changelog, delete_retention_ms="604800000") == set()


def test_an_unknown_value_is_wrong() -> None:
    assert wrong(NAMES.events, message_timestamp_type=None) == {"message.timestamp.type"}


def test_a_deletion_outlives_the_age_of_a_saved_position_and_a_recovery_as_long() -> None:
    assert DELETE_RETENTION_MS >= 2 * SAVED_AGE_MAX_S * 1_000
