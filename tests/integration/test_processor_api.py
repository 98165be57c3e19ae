"""The control API of two workers: read-your-writes, its documented errors, requests passed on."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sessionary.infra.local.ports import free_port, free_ports
from sessionary.schemas.events.session import SessionStarted, SessionStartFailed
from sessionary.schemas.ids import new_session_id, partition_of
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from sessionary.stream_processors.api.openapi import DOCUMENT
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, agent_of_partition, start_processor
from tests.integration.test_processor_road import SHORT
from tests.support import Processes, wait_until

TOKENS = json.dumps(
    {"token-a": "acme", "token-b": "other", "token-op": {"principal": "on-call", "roles": ["operator"]}}
)


class ApiResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


def get(url: str, token: str | None = "token-a", method: str = "GET") -> ApiResponse:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        request = urllib.request.Request(url, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, dict(error.headers), error.read())
    except OSError as error:
        return ApiResponse(0, {}, str(error))


def get_known(url: str, token: str | None = "token-a") -> ApiResponse:
    """Return the first answer that knows: a worker that is behind asks for a later try."""

    def try_again() -> ApiResponse | None:
        answer = get(url, token)
        return answer if answer.status not in (0, 503) else None

    return wait_until(try_again, 120, f"an answer at {url}")


def _answer(status: int, headers: Mapping[str, str], body: bytes) -> ApiResponse:
    is_json = "json" in headers["Content-Type"]
    return ApiResponse(status, headers, json.loads(body) if is_json else body.decode())


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value fits a schema of the document; knows what the document uses."""
    if "$ref" in schema:
        return conforms(value, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema:
        return sum(conforms(value, choice) for choice in schema["oneOf"]) == 1
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    types = {"string": str, "integer": int, "null": type(None), "object": dict, "array": list, "boolean": bool}
    if not any(isinstance(value, types[kind]) for kind in kinds):
        return False
    if isinstance(value, list):
        return all(conforms(item, schema["items"]) for item in value)
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        return value.keys() == properties.keys() and all(conforms(value[name], properties[name]) for name in value)
    return value in schema.get("enum", [value])


def documented(answer: ApiResponse, path: str = "/v1/sessions/{session_id}", method: str = "get") -> bool:
    """Whether the document promises this answer."""
    response = DOCUMENT["paths"][path][method]["responses"][str(answer.status)]
    media_type = answer.headers["Content-Type"].partition(";")[0]
    return conforms(answer.body, response["content"][media_type]["schema"])


def test_a_client_reads_its_own_writes_at_any_worker(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    token_file = tmp_path / "tokens.json"
    token_file.write_text("{}")
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for name, port in zip(("w1", "w2"), ports, strict=True):
        settings = {"api_port": str(port), "api_tokens": TOKENS, "api_tokens_file": str(token_file)}
        start_processor(processes, kafka, name, **settings)

    def both_open() -> bool:
        answers = [get(f"{url}/readyz") for url in urls]
        return all(answer.status == 200 and len(answer.body["partitions"]) == 2 for answer in answers)

    wait_until(both_open, 30, "both workers have two partitions each, open")
    agents = [agent_of_partition(number % 4, 4) for number in range(12)]
    for agent in agents:
        sender = Sender(kafka)
        sender.send(*agent.start(), agent.event(SessionStarted()))
        *_, started, rejected = sender.flush()
        for url in urls:
            session = f"{url}/v1/sessions/{agent.key.session_id}?after="
            answer = get_known(f"{session}{started[0]}:{started[1]}")
            assert answer.status == 200, answer
            assert documented(answer)
            assert (answer.body["state"], answer.body["phase"]) == ("Active", "processing")
            assert answer.body["verdict"]["outcome"] == "applied"
            answer = get_known(f"{session}{rejected[0]}:{rejected[1]}")
            assert (answer.body["verdict"]["outcome"], answer.body["verdict"]["reason"]) == (
                "rejected",
                "illegal_transition",
            )
            assert answer.body["position"]["next_offset"] > rejected[1]
    _check_errors(kafka, urls, agents[0])
    _check_archived(kafka, urls, SHORT)
    token_file.write_text('{"token-new": "acme"}')
    session = f"/v1/sessions/{agents[0].key.session_id}"
    wait_until(lambda: {get(url + session, "token-new").status for url in urls} == {200}, 10, "the new token is known")


def _check_errors(kafka: KafkaSettings, urls: list[str], agent: Agent) -> None:
    partition = partition_of(agent.key.encoded(), kafka.partitions)
    for url in urls:
        session = f"{url}/v1/sessions/{agent.key.session_id}"
        for wanted, answer in (
            (401, get_known(session, token=None)),
            (401, get_known(session, token="wrong")),
            (403, get_known(session, token="token-op")),
            (400, get_known(f"{url}/v1/sessions/%07")),
            (400, get_known(f"{session}?after=x")),
            (400, get_known(f"{session}?after={(partition + 1) % 4}:1")),
            (400, get_known(f"{session}?wait_ms=99999")),
            (404, get_known(f"{url}/v1/sessions/{new_session_id()}")),
            (404, get_known(session, token="token-b")),  # another tenant's session is no session at all
            (503, get(f"{session}?after={partition}:99999&wait_ms=100")),
        ):
            assert answer.status == wanted, answer
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert documented(answer)
            assert answer.body["type"].endswith(f"/{answer.body['reason']}")
            assert ("Retry-After" in answer.headers) == (wanted == 503)
        assert get(f"{url}/healthz").status == 200
        assert get(f"{url}/openapi.json").body == DOCUMENT
        assert "sessionary_processor_records_total" in get(f"{url}/metrics").body
        assert get(f"{url}/table").status == 404  # Faust's own pages show tables to anybody


def _check_archived(kafka: KafkaSettings, urls: list[str], limits: Limits) -> None:
    sender, agent = Sender(kafka), Agent()
    sender.send(agent.start(limits)[0], agent.event(SessionStartFailed("invalid_config", None), seq=2))
    sender.flush()
    url = f"{urls[0]}/v1/sessions/{agent.key.session_id}"
    wait_until(lambda: get(url).status == 410, 10, "archived")
    answer = get_known(url)
    assert documented(answer)
    assert answer.body["reason"] == "session_archived"


def test_a_halted_partition_is_listed_and_opened_again_through_any_worker(
    kafka: KafkaSettings, processes: Processes
) -> None:
    halted = 2
    producer = Producer(kafka.client_config())
    producer.produce(kafka.topics.changelog, b"damaged", b"acme:key", partition=halted)
    assert producer.flush(120) == 0
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    for name, url in zip(("w1", "w2"), urls, strict=True):
        start_processor(processes, kafka, name, api_port=url.rpartition(":")[2], api_tokens=TOKENS)

    def list_partitions(url: str) -> list[Any]:
        answer = get(f"{url}/v1/partitions", "token-op")
        assert answer.status in (0, 200), answer
        assert answer.status == 0 or documented(answer, "/v1/partitions")
        return answer.body["partitions"] if answer.status else []

    def states(url: str) -> list[str]:
        return [partition["state"] for partition in list_partitions(url)]

    expected = ["open", "open", "halted", "open"]
    wait_until(lambda: [states(url) for url in urls] == [expected] * 2, 40, "three open partitions, one halted")
    # The halted one is tried again now and then: each time it tells a later time.
    listed = wait_until(
        lambda: found if (found := list_partitions(urls[0])) == list_partitions(urls[1]) else None, 60, "the same list"
    )
    assert {partition["instance"] for partition in listed} == {"w1", "w2"}
    assert listed[halted]["reason"] == "changelog_unreadable"
    assert abs(listed[halted]["halted_at_ms"] / 1_000 - time.time()) < 600
    other = next(url for url in urls if url != listed[halted]["url"])

    def retry_halted(url: str) -> ApiResponse | None:
        """Try again; None while the worker tries by itself, which it does now and then."""
        answer = _retry(url, halted)
        return answer if answer.status != 409 else None

    for url in urls:
        answer = wait_until(partial(retry_halted, url), 60, "a new try")
        assert (answer.status, answer.body["state"]) == (200, "halted"), "the cause is still there"
    _delete_first_record(kafka, kafka.topics.changelog, halted)
    tried = wait_until(lambda: retry_halted(other) or states(other) == ["open"] * 4, 60, "a new try")
    if isinstance(tried, ApiResponse):  # the worker has not been faster
        assert (tried.status, tried.body["state"], tried.body["next_offset"]) == (200, "open", 0)
    wait_until(lambda: states(other) == ["open"] * 4, 60, "four open partitions")
    for wanted, answer in (
        (409, _retry(other, halted)),
        (404, _retry(other, 4)),
        (403, _retry(other, halted, "token-a")),
        (401, _retry(other, halted, "wrong")),
    ):
        assert answer.status == wanted, answer
    metrics_url = f"{listed[halted]['url']}/metrics"
    wait_until(
        lambda: "sessionary_processor_partitions_halted{" not in get(metrics_url).body, 30, "no partition is halted"
    )
    assert "on-call" in "".join(child.log.read_text() for child in processes.started)


def _delete_first_record(kafka: KafkaSettings, topic: str, partition: int) -> None:
    """Also of a compacted topic, of which the broker deletes nothing as it is."""
    admin = AdminClient(kafka.client_config())
    policy = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[policy])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(120)

    def delete_record() -> bool:
        try:
            for deleted in admin.delete_records([TopicPartition(topic, partition, 1)]).values():
                deleted.result(120)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    # The controller has the new policy; the partition's broker learns of it a moment later.
    wait_until(delete_record, 60, "the broker lets the record be deleted")


def _retry(url: str, partition: int, token: str = "token-op") -> ApiResponse:
    answer = get(f"{url}/v1/partitions/{partition}/retry", token, "POST")
    assert documented(answer, "/v1/partitions/{partition}/retry", "post"), answer
    return answer


def test_a_worker_whose_fold_waits_while_its_log_goes_on_is_not_ready(
    kafka: KafkaSettings, processes: Processes
) -> None:
    port = free_port()
    # No registry answers there, so a record in Confluent's framing cannot be judged.
    start_processor(
        processes, kafka, "w1", api_port=str(port), api_tokens=TOKENS, schema_registry_url="http://127.0.0.1:1"
    )
    ready = f"http://127.0.0.1:{port}/readyz"
    wait_until(lambda: get(ready).status == 200, 30, "the worker to be ready")
    agent, sender = Agent(), Sender(kafka)
    sender.send(OutgoingRecord(agent.key.encoded(), b"\x00" + (7).to_bytes(4, "big") + b"value"))
    ((partition, offset),) = sender.flush()
    wait_until(lambda: get(ready).status == 503, 60, "the worker to be no longer ready", pause_s=0.5)
    answer = get(ready)
    assert answer.body["ready"] is False
    states = answer.body["partitions"]
    assert states.pop(str(partition)).startswith(f"stands at offset {offset} for ")
    assert set(states.values()) == {"open"}
