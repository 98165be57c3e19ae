"""Records whose headers have names that are not UTF-8, as other clients may send them."""

import json
import os
import subprocess
import sys

from sessionary.schemas.settings import KafkaSettings

BROKEN_NAME = b"na\xffme"
_SEND_S = 300
# aiokafka without its C extension encodes a name by the name's own method. The official client
# takes text only, and encodes it as UTF-8.
_PROGRAM = """
import asyncio, json, sys
from aiokafka import AIOKafkaProducer

class Name(str):
    def encode(self, *_):
        return bytes.fromhex(self)

async def send(servers, topic, records):
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    for key, value, partition, name in records:
        headers = [("before", b"1"), (Name(name), b"2"), ("after", b"3")]
        await producer.send_and_wait(topic, bytes.fromhex(value), bytes.fromhex(key), partition, headers=headers)
    await producer.stop()

asyncio.run(send(*json.load(sys.stdin)))
"""


class BrokenMessage:
    """Behaves like a message of the driver with such a header, but for the crash."""

    def __init__(self) -> None:
        self._headers: object = None

    def headers(self) -> object:
        if self._headers is None:
            self._headers = _HOLE
            raise SystemError("returned a result with an exception set")
        assert self._headers is not _HOLE, "read again: the process would die"
        return self._headers

    def set_headers(self, headers: list[tuple[str, str | bytes | None]], /) -> None:
        self._headers = headers


_HOLE = object()


def send_with_broken_header(kafka: KafkaSettings, *records: tuple[int, bytes, bytes]) -> None:
    """Send (partition, key, value) records to the events topic, each with such a header."""
    rows = [(key.hex(), value.hex(), partition, BROKEN_NAME.hex()) for partition, key, value in records]
    subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([kafka.bootstrap_servers, kafka.topics.events, rows]),
        env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},
        timeout=_SEND_S,
        check=True,
        text=True,
    )
