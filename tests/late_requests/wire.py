"""The part of Kafka's protocol that the proxy reads: who asks for what, and where brokers are.

Layouts are those of Kafka's message definitions (kafka.apache.org/protocol). A version is flexible
if its strings and arrays are compact and its structures end with tagged fields. Pure.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

Address = tuple[str, int]

APIS: Final[Mapping[int, str]] = {
    0: "Produce",
    3: "Metadata",
    10: "FindCoordinator",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}
# The first flexible version of each.
_FLEXIBLE_FROM: Final = {0: 9, 3: 9, 10: 3, 22: 2, 24: 3, 25: 3, 26: 3, 28: 3}
_ENDPOINTS_FROM, _TOPIC_IDS_FROM = 10, 13  # of `Produce`
_TRANSACTIONAL: Final = frozenset({"Produce", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"})
OF_TRANSACTIONS: Final = _TRANSACTIONAL | {"TxnOffsetCommit"}


class Request(NamedTuple):
    """A request's header, and of a producer's requests what they name.

    Attributes:
        api: Its name, as `EndTxn`; empty for those that are only forwarded.
        version: Version of the request.
        correlation_id: The number by which the answer is known.
        transactional_id: None if it has none.
        commit: Of an `EndTxn`: commit or abort. None for others.
        topics: The topics that a `Produce` or an `AddPartitionsToTxn` names.
    """

    api: str
    version: int
    correlation_id: int
    transactional_id: str | None = None
    commit: bool | None = None
    topics: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The request as people read it: `EndTxn v1 commit`."""
        end = "" if self.commit is None else " commit" if self.commit else " abort"
        topics = f" {','.join(self.topics)}" if self.topics else ""
        return f"{self.api} v{self.version}{end}{topics}"


class _Reader:
    """Reads values in their order."""

    def __init__(self, data: bytes, at: int, *, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, at, flexible

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(f">{layout}", self.data, self.at)
        self.at += struct.calcsize(f">{layout}")
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def size(self, layout: str) -> int:
        """Return a length; -1 for null."""
        return self.varint() - 1 if self.flexible else self.number(layout)

    def skip_bytes(self) -> None:
        size = self.size("i")  # moves `at` itself
        self.at += max(0, size)

    def string(self) -> str | None:
        length = self.size("h")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip_tags(self) -> None:
        for _ in range(self.varint() if self.flexible else 0):
            self.varint()
            size = self.varint()
            self.at += size


def read_request(frame: bytes) -> Request:
    """Return what a request's frame, without its length, says."""
    key, version, correlation_id = struct.unpack_from(">hhi", frame)
    api = APIS.get(key, "")
    request = Request(api, version, correlation_id)
    if api not in OF_TRANSACTIONS:
        return request
    reader = _Reader(frame, 8, flexible=False)
    reader.string()  # the client's id, which is never compact
    reader.flexible = version >= _FLEXIBLE_FROM[key]
    reader.skip_tags()
    request = request._replace(transactional_id=reader.string())
    if api == "EndTxn":
        reader.number("q"), reader.number("h")
        return request._replace(commit=bool(reader.number("b")))
    if api == "Produce" and version < _TOPIC_IDS_FROM:
        reader.number("h"), reader.number("i")
        return request._replace(topics=_topic_names(reader, _skip_batches))
    if api == "AddPartitionsToTxn" and version < 4:
        reader.number("q"), reader.number("h")
        return request._replace(topics=_topic_names(reader, lambda reader: reader.number("i")))
    return request


def _topic_names(reader: _Reader, skip_partition: Callable[[_Reader], object]) -> tuple[str, ...]:
    topics = []
    for _ in range(reader.size("i")):
        topics.append(reader.string() or "")
        for _ in range(reader.size("i")):
            skip_partition(reader)
        reader.skip_tags()
    return tuple(topics)


def _skip_batches(reader: _Reader) -> None:
    reader.number("i")
    reader.skip_bytes()
    reader.skip_tags()


class ProducerGiven(NamedTuple):
    """The answer to an `InitProducerId`."""

    error: int  # Kafka's error code; 0: it was carried out
    producer_id: int
    epoch: int


def init_producer_frame(transactional_id: str) -> bytes:
    """Return an `InitProducerId` v1 with its length; it raises the id's producer epoch."""
    name = transactional_id.encode()
    body = struct.pack(">hhih", 22, 1, 0, -1) + struct.pack(">h", len(name)) + name + struct.pack(">i", 10_000)
    return struct.pack(">i", len(body)) + body


def read_producer_given(answer: bytes) -> ProducerGiven:
    """Return what the answer, without its length, to `init_producer_frame` says."""
    return ProducerGiven(*struct.unpack_from(">hqh", answer, 8))


def error_code(request: Request, answer: bytes) -> int:
    """Return the first error code of the answer to a producer's request; 0: it was carried out.

    Raises `ValueError` for requests of other kinds.
    """
    key = next(key for key, name in APIS.items() if name == request.api)
    reader = _Reader(answer, 4, flexible=request.version >= _FLEXIBLE_FROM[key])
    reader.skip_tags()
    if request.api == "Produce":
        codes = _codes_by_partition(reader)
    elif request.api in ("AddPartitionsToTxn", "TxnOffsetCommit"):
        reader.number("i")
        codes = _codes_by_partition(reader)
    elif request.api in _TRANSACTIONAL:
        reader.number("i")
        codes = [reader.number("h")]
    else:
        raise ValueError(f"{request.api} is no request of a producer")
    return next((code for code in codes if code), 0)


def _codes_by_partition(reader: _Reader) -> list[int]:
    """Return the first partition's code; further fields differ by version."""
    for _ in range(min(1, reader.size("i"))):
        reader.string()
        if reader.size("i") > 0:
            reader.number("i")
            return [reader.number("h")]
    return []


def replace_addresses(request: Request, answer: bytes, address_for: Callable[[Address], Address]) -> bytes:
    """Return the answer with each broker's address replaced; other answers as they are."""
    if request.api == "Metadata":
        flexible = request.version >= _FLEXIBLE_FROM[3]
        reader = _Reader(answer, 4, flexible=flexible)
        reader.skip_tags()
        if request.version >= 3:
            reader.number("i")
        brokers, made, begin = reader.size("i"), bytearray(), reader.at
        for _ in range(brokers):
            made += _replaced_address(reader, address_for)
            kept = reader.at
            if request.version >= 1:
                reader.string()
            reader.skip_tags()
            made += answer[kept : reader.at]
        return answer[:begin] + bytes(made) + answer[reader.at :]
    if request.api == "FindCoordinator":
        if request.version >= 4:
            raise ValueError("FindCoordinator v4 and later are not read yet")
        flexible = request.version >= _FLEXIBLE_FROM[10]
        reader = _Reader(answer, 4, flexible=flexible)
        reader.skip_tags()
        if request.version >= 1:
            reader.number("i")
        failed = reader.number("h")
        if request.version >= 1:
            reader.string()
        begin = reader.at
        if failed:
            return answer
        return answer[:begin] + _replaced_address(reader, address_for) + answer[reader.at :]
    if request.api == "Produce" and request.version >= _ENDPOINTS_FROM:
        return _without_endpoints(answer)
    return answer


def _without_endpoints(answer: bytes) -> bytes:
    """Return an answer to `Produce` without the leaders' addresses, which it has after a move.

    The program asks for them by `Metadata` then (KIP-951).
    """
    reader = _Reader(answer, 4, flexible=True)
    reader.skip_tags()
    for _ in range(reader.size("i")):
        reader.string()
        for _ in range(reader.size("i")):
            reader.at += struct.calcsize(">ihqqq")  # partition, error, offset, append time, start of the log
            for _ in range(reader.size("i")):
                reader.number("i")
                reader.string()
                reader.skip_tags()
            reader.string()
            reader.skip_tags()
        reader.skip_tags()
    reader.number("i")
    return answer[: reader.at] + _encode_varint(0)


def _replaced_address(reader: _Reader, address_for: Callable[[Address], Address]) -> bytes:
    """Return a node's id, host and port, with the host and port replaced."""
    node = reader.number("i")
    host, port = address_for((reader.string() or "", reader.number("i")))
    name = host.encode()
    length = _encode_varint(len(name) + 1) if reader.flexible else struct.pack(">h", len(name))
    return struct.pack(">i", node) + length + name + struct.pack(">i", port)


def _encode_varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
