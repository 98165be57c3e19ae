"""The registry's adapter, against an HTTP server that speaks the two endpoints."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from sessionary.schemas.codec import Decoder, encode_confluent, encode_event
from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.codec.registry import ConfluentRegistry
from sessionary.schemas.errors import DecodeError, Unavailable
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.settings import KafkaSettings
from tests.support.values import example_event


class StubServer(ThreadingHTTPServer):
    """`POST /subjects/<name>/versions` and `GET /schemas/ids/<id>`; `status` other than 200 answers
    every call.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.schemas: list[str] = []
        self.subjects: list[str] = []
        self.status = 200
        self.body: Any = None
        self.gets = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class StubHandler(BaseHTTPRequestHandler):
    server: StubServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""

    def answer(self, status: int, body: Any) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def do_GET(self) -> None:
        self.server.gets += 1
        number = int(self.path.partition("?")[0].rpartition("/")[2])
        if self.server.status != 200 or self.server.body is not None:
            self.answer(self.server.status, self.server.body or {"error_code": self.server.status, "message": "down"})
        elif 1 <= number <= len(self.server.schemas):
            self.answer(200, {"schema": self.server.schemas[number - 1]})
        else:
            self.answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status != 200:
            self.answer(self.server.status, {"error_code": self.server.status, "message": "down"})
            return
        self.server.subjects.append(self.path.split("/")[2])
        if body["schema"] not in self.server.schemas:
            self.server.schemas.append(body["schema"])
        self.answer(200, {"id": self.server.schemas.index(body["schema"]) + 1})


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer() as stub:
        thread = Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()


@pytest.fixture
def registry(server: StubServer) -> Iterator[ConfluentRegistry]:
    with SchemaRegistryClient({"url": server.url, "max.retries": 0, "timeout": 60}) as client:
        yield ConfluentRegistry(client)


EVENT = example_event(StateUpdated)


def test_an_event_goes_out_and_comes_back_through_a_registry(server: StubServer, registry: ConfluentRegistry) -> None:
    encoded = encode_confluent(EVENT, registry)
    assert encoded[:5] == b"\x00\x00\x00\x00\x01"
    assert encoded[5:] == encode_event(EVENT)[10:]
    assert server.subjects == ["sessionary.events.StateUpdated"]
    decoder = Decoder(registry)
    assert [decoder.decode_event(encoded) for _ in range(3)] == [EVENT] * 3
    assert server.gets <= 1


def test_an_unknown_id_is_an_unknown_schema(registry: ConfluentRegistry) -> None:
    with pytest.raises(KeyError):
        registry.get_schema(77)
    with pytest.raises(DecodeError) as caught:
        Decoder(registry).decode_event(b"\x00\x00\x00\x00\x4d rest")
    assert caught.value.reason == "unknown_schema"


@pytest.mark.parametrize("status", [401, 403, 409, 422, 500, 503])
def test_any_other_answer_is_unavailable(server: StubServer, registry: ConfluentRegistry, status: int) -> None:
    server.status = status
    with pytest.raises(Unavailable):
        registry.get_schema(1)
    with pytest.raises(Unavailable):
        registry.register_schema("a.B", '"string"')
    with pytest.raises(Unavailable):  # trouble outside is never the record's fault
        Decoder(registry).decode_event(b"\x00\x00\x00\x00\x01 rest")


def test_an_answer_that_is_no_registrys_is_unavailable(server: StubServer, registry: ConfluentRegistry) -> None:
    server.body = ["not", "a", "registry"]
    with pytest.raises(Unavailable):
        registry.get_schema(1)


def test_no_server_listening_is_unavailable(server: StubServer) -> None:
    url = server.url
    server.server_close()
    with SchemaRegistryClient({"url": url, "max.retries": 0, "timeout": 2}) as client:
        registry = ConfluentRegistry(client)
        with pytest.raises(Unavailable):
            registry.get_schema(1)
        with pytest.raises(Unavailable):
            registry.register_schema("a.B", '"string"')


def test_settings_name_the_registry_that_a_decoder_asks(server: StubServer) -> None:
    event = example_event(StateUpdated)
    value = encode_confluent(event, ConfluentRegistry(SchemaRegistryClient({"url": server.url})))
    assert decoder_for(KafkaSettings(schema_registry_url=server.url)).decode_event(value) == event
    with pytest.raises(DecodeError, match="unknown_schema"):
        decoder_for(KafkaSettings()).decode_event(value)


def test_a_registry_that_is_away_is_waited_for_and_makes_no_refusal(server: StubServer) -> None:
    value = encode_confluent(example_event(StateUpdated), ConfluentRegistry(SchemaRegistryClient({"url": server.url})))
    decoder = decoder_for(KafkaSettings(schema_registry_url=server.url))
    server.status = 503
    with pytest.raises(Unavailable):
        decoder.decode_event(value)
    server.status = 200
    assert decoder.decode_event(value) == example_event(StateUpdated)
