"""What doctor says of the topics, without a broker."""

import pytest

from sessionary.infra import topics
from sessionary.infra.cli.commands import doctor
from sessionary.schemas.settings import KafkaSettings


@pytest.mark.parametrize("has_ids", [True, False])
def test_doctor_names_a_broker_that_gives_topics_no_ids(has_ids: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "list_topic_changes", lambda _: list[str]())
    monkeypatch.setattr(topics, "has_topic_ids", lambda _: has_ids)
    found = doctor._check_topics(KafkaSettings())
    assert found.startswith("all topics of prefix 'sessionary' are correct")
    assert ("gives topics no ids" in found) == (not has_ids)
