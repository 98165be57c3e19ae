"""What the members of a group say by their client ids, and what a worker makes of it."""

import os
import socket
from typing import Any

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.group_members import (
    Member,
    NameWatch,
    client_id,
    find_namesakes,
    group_by_name,
    parse_member,
    require_secrets,
    secrets_of,
)
from sessionary.stream_processors.settings import ProcessorSettings

PROCESS = f"{socket.gethostname()}-{os.getpid()}"
WITH_TOKENS: dict[str, Any] = {"api_tokens": {"secret": "acme"}}
ONE = Member("w1", "host-a-7", "10.0.0.1", frozenset({"tokens"}))
TWO = Member("w2", "host-b-7", "10.0.0.2", frozenset())


def settings(**fields: Any) -> ProcessorSettings:
    return ProcessorSettings(**{"instance": "w1", **fields})


@pytest.mark.parametrize(
    ("fields", "secrets"),
    [({}, set()), (WITH_TOKENS, {"tokens"}), ({"api_tokens_file": "t"}, {"tokens"}), ({"api_tokens": {}}, set())],
)
def test_a_client_id_says_name_process_and_which_secrets_there_are(fields: dict[str, Any], secrets: set[str]) -> None:
    mine = settings(**fields)
    assert secrets_of(mine) == secrets
    assert parse_member(client_id(mine), "/10.0.0.1") == Member("w1", PROCESS, "10.0.0.1", frozenset(secrets))
    assert "secret" not in client_id(mine)


def test_a_member_of_another_kind_has_a_name_only() -> None:
    assert parse_member("sessionary-w1", "/10.0.0.1") == Member("w1", "w1", "10.0.0.1", frozenset())
    assert parse_member("rdkafka", "") == Member("rdkafka", "rdkafka", "", frozenset())


def test_another_process_of_the_same_name_is_found_on_both_sides() -> None:
    own = Member("w1", PROCESS, "10.0.0.3", frozenset())
    members = [ONE, own, TWO]
    assert find_namesakes(members, client_id(settings())) == [ONE]
    assert find_namesakes(members, "sessionary-w1+host-a-7+tokens") == [own]
    assert find_namesakes(members, "sessionary-w2+host-b-7") == []
    assert group_by_name(members) == {"w1": [ONE, own]}
    assert group_by_name([ONE._replace(member_id="a"), ONE._replace(member_id="b"), TWO]) == {}


def test_a_worker_that_came_back_in_time_has_no_namesake_by_the_client_id_of_its_former_process() -> None:
    watch = NameWatch("sessionary-w1+host-a-8+tokens")
    for place in "xxxyyyz":  # it joins again now and then
        assert watch.look([ONE._replace(member_id=place), TWO]) == ([], False)


def test_of_two_that_take_each_others_place_the_one_that_is_not_shown_gives_way() -> None:
    one, two = NameWatch("sessionary-w1+host-a-7+tokens"), NameWatch("sessionary-w1+host-b-9+tokens")
    looks = [ONE._replace(member_id=place) for place in "xyz"]
    assert [one.look([look]) for look in looks] == [([], False)] * 3
    assert [two.look([look]) for look in looks] == [([], False), ([], False), ([looks[2]], True)]
    joined = Member("w1", "host-b-9", "10.0.0.2", frozenset({"tokens"}), "w1-z")
    assert one.look([looks[2], joined]) == ([joined], False)
    assert two.look([looks[2], joined]) == ([looks[2]], False)


def test_a_worker_without_tokens_does_not_join_others_that_have_them() -> None:
    group = "sessionary.processor"
    with pytest.raises(SettingsError, match=rf"not set, but the group {group} .*: w1 \(host-a-7 at 10.0.0.1\)"):
        require_secrets(settings(instance="w2"), [ONE])
    require_secrets(settings(instance="w2", **WITH_TOKENS), [ONE])
    require_secrets(settings(instance="w3"), [TWO])
    require_secrets(settings(instance="w2", api_port=0), [ONE])  # it refuses no request
    require_secrets(settings(), [ONE])  # its own former process
