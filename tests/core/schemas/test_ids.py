"""Keys, ids and the partitioner, against known vectors and librdkafka itself."""

import uuid

import pytest
from confluent_kafka import KafkaError, Message, Producer
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import (
    SessionKey,
    artifact_key,
    call_key,
    checked_name,
    derived_id,
    given_session_id,
    is_run_key,
    message_key,
    murmur2,
    new_session_id,
    parse_key,
    partition_of,
    run_key,
    split_child_key,
    step_key,
)
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
SESSION = "0198f1c2-7d9a-7000-8000-000000000001"


@pytest.mark.parametrize(("text", "signed"), KAFKA_VECTORS.items())
def test_murmur2_gives_kafkas_own_vectors(text: str, signed: int) -> None:
    assert murmur2(text.encode()) == signed & 0xFFFFFFFF


def test_librdkafka_sends_every_key_where_we_say() -> None:
    placed: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        placed[key] = partition

    producer = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "", "partitioner": "murmur2_random", "log_level": 0}
    )
    keys = [f"tenant-{n % 7}:{derived_id(n)}"[: 40 + n % 8].encode() for n in range(500)]
    for key in keys:
        producer.produce("events", value=b"", key=key, on_delivery=delivered)
    assert producer.flush(30) == 0
    count = len(producer.list_topics("events", timeout=60).topics["events"].partitions)
    assert count > 1
    assert placed == {key: partition_of(key, count) for key in keys}
    assert len(set(placed.values())) == count


@given(st.binary(max_size=40), st.integers(1, 10_000))
def test_a_partition_is_one_of_the_topics(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True), st.uuids(version=4))
def test_a_key_is_read_as_it_was_written(tenant: str, session: uuid.UUID) -> None:
    key = SessionKey(tenant, str(session))
    assert parse_key(key.encoded()) == key


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b":",
        b"acme",
        b"acme:",
        b":" + SESSION.encode(),
        b"acme:" + SESSION.upper().encode(),
        b"acme:" + SESSION.encode() + b"\n",
        b"acme\n:" + SESSION.encode(),
        b"-acme:" + SESSION.encode(),
        b"a" * 129 + b":" + SESSION.encode(),
        b"ac:me:" + SESSION.encode(),
        b"\xff:" + SESSION.encode(),
        "ämter:".encode() + SESSION.encode(),
        b"acme:00000000-0000-0000-0000-000000000000",
        b"\x00position",
    ],
)
def test_anything_else_is_a_bad_key(key: bytes | None) -> None:
    with pytest.raises(Invalid) as caught:
        parse_key(key)
    assert caught.value.reason == "bad_key"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_key_parser(key: bytes) -> None:
    try:
        parsed = parse_key(key)
    except Invalid as error:
        assert error.reason == "bad_key"  # noqa: PT017 - a key that is read is as good
    else:
        assert parsed.encoded() == key


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a:b", "a/b", "ä", "a" * 129, "a\n"])
def test_names_that_could_break_a_key_a_header_or_a_path_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="tenant"):
        checked_name("tenant", name)


def test_new_ids_are_of_the_version_asked_for_and_ordered_by_time() -> None:
    four, seven = uuid.UUID(new_session_id()), [uuid.UUID(new_session_id(1_700_000_000_000 + n)) for n in range(50)]
    assert four.version == 4
    assert {each.version for each in seven} == {7}
    assert {each.variant for each in seven} == {uuid.RFC_4122}
    assert seven == sorted(seven)
    assert [each.int >> 80 for each in seven] == [1_700_000_000_000 + n for n in range(50)]
    assert all(given_session_id("acme", each).session_id == str(each) for each in seven)


def test_derived_ids_are_the_same_in_every_process_and_differ_by_each_part() -> None:
    assert derived_id("acme", SESSION, 7) == "4069ca99-c300-5572-915d-733188b0e714"
    assert len({derived_id("a", "b", 1), derived_id("a", "b", 2), derived_id("b", "a", 1), derived_id("a", "b")}) == 4


@pytest.mark.parametrize("run_id", ["", "r1", ":", "a:b", "\x00content", "0b0ae0c4-93f3-4a6a-8e5a-9f5d3f2d2c11", "ü"])
def test_the_key_of_a_run_is_no_key_of_a_session_or_a_content(run_id: str) -> None:
    session = SessionKey("acme", "0b0ae0c4-93f3-4a6a-8e5a-9f5d3f2d2c11")
    key = run_key(*session, run_id)
    assert is_run_key(key)
    assert key == session.encoded() + b":" + run_id.encode() + b":"
    assert not is_run_key(session.encoded())
    assert not key.endswith(b"\x00content")
    with pytest.raises(Invalid, match="is not tenant_id:session_id"):
        parse_key(key)


@given(st.text(max_size=80), st.text(max_size=80))
def test_the_key_of_a_child_gives_its_parent_and_no_other_key_looks_like_one(run_id: str, name: str) -> None:
    session, run = SessionKey("acme", SESSION).encoded(), run_key("acme", SESSION, run_id)
    of_run = step_key(run, name), call_key(run, name), artifact_key(run, name)
    of_session = call_key(session, name), artifact_key(session, name), message_key(session, len(name))
    children = {*of_run, *of_session}
    assert len(children) == 6
    assert [split_child_key(key) for key in of_run] == [(run, key[len(run) :]) for key in of_run]
    assert [split_child_key(key) for key in of_session] == [(session, key[len(session) :]) for key in of_session]
    others = [session, run, *(key + b"\0content" for key in (session, run, *children))]
    assert [split_child_key(key) for key in others] == [None] * len(others)
    assert not any(map(is_run_key, children))


def test_the_turns_of_a_session_share_so_many_rows() -> None:
    session = SessionKey("acme", SESSION).encoded()
    keys = [message_key(session, turn) for turn in range(1, 2 * CONVERSATION_TURNS_MAX + 1)]
    assert len(set(keys)) == CONVERSATION_TURNS_MAX
    assert keys[:CONVERSATION_TURNS_MAX] == keys[CONVERSATION_TURNS_MAX:]


@pytest.mark.parametrize(
    "rest",
    [
        b"\0B" + b"0" * 32,  # a family's letter is a small one
        b"\1c" + b"0" * 32,
        b"\0c" + b"A" * 32,  # digits are lower case
        b"\0c" + b"0" * 15 + b"g" + b"0" * 16,
        b"\0c" + b"0" * 31,
        b"c" + b"0" * 32,
        b"",
    ],
)
def test_a_key_that_only_looks_like_a_child_s_has_no_parent(rest: bytes) -> None:
    assert split_child_key(b"acme:s" + rest) is None
    assert split_child_key(b"acme:s\0c" + b"0f" * 16) == (b"acme:s", b"\0c" + b"0f" * 16)
