"""Each record about an event is passed on to its topic, in whatever form it is written."""

import pytest

from benchmarks.workload.output_topics import HEAD_BYTES, topics_by_head
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import TopicNames
from tests.support.sink_records import NOW_US, audit_record

NAMES = TopicNames.with_prefix("t")


@pytest.mark.parametrize("rules", [NEWEST_RULES.version])
def test_the_head_of_a_record_names_its_topic_by_each_version_of_the_rules(rules: int) -> None:
    letter = RejectedEvent(
        "undecodable", "why", False, "acme", "s", "e", None, None, NAMES.events, 1, 5, NOW_US, b"k", b"v", {}
    )
    heads = [encode_record(record, rules)[:HEAD_BYTES] for record in (audit_record(1, 1), letter)]
    assert [topics_by_head(NAMES)[head] for head in heads] == [NAMES.audit, NAMES.rejected]
