"""librdkafka's mock cluster: brokers in this process that are slow, silent, or refuse requests.

A broker that falls silent keeps its connections open and answers nothing: what a client sees of a
frozen host, or of a network that drops packets.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

_SILENT_MS = 10_000_000
_ERROR_BYTES = 512


def _load_library() -> ctypes.CDLL:
    """Return the librdkafka of confluent-kafka's wheel, with the signatures of what is used."""
    assert confluent_kafka.__file__ is not None
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
    library, pointer, text, number = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_partition_set_leader": (number, [pointer, text, ctypes.c_int32, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_rtt": (number, [pointer, ctypes.c_int32, number]),
        "rd_kafka_mock_push_request_errors_array": (
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """Brokers 1 to 3, each the replica of every partition. `mock_cluster` makes one."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library, self._handle = library, handle
        self.bootstrap_servers: str = library.rd_kafka_mock_cluster_bootstraps(handle).decode()

    def create_topic(self, topic: str, leaders: list[int]) -> None:
        """Create a topic with one partition per entry of `leaders`, led by that broker."""
        assert self._library.rd_kafka_mock_topic_create(self._handle, topic.encode(), len(leaders), 3) == 0
        for partition, broker in enumerate(leaders):
            self.move_leader(topic, partition, broker)

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make a broker the leader of a partition."""
        assert self._library.rd_kafka_mock_partition_set_leader(self._handle, topic.encode(), partition, broker) == 0

    def silence_broker(self, broker: int) -> None:
        """Let a broker answer nothing more, on open and on new connections."""
        self.slow_down(broker, _SILENT_MS)

    def slow_down(self, broker: int, answer_ms: int) -> None:
        """Let a broker answer each request after so many milliseconds."""
        assert self._library.rd_kafka_mock_broker_set_rtt(self._handle, broker, answer_ms) == 0

    def refuse_request(self, api_key: int, error: int) -> None:
        """Answer the next request of this kind (Kafka's API key) with this error code."""
        errors = (ctypes.c_int * 1)(error)
        self._library.rd_kafka_mock_push_request_errors_array(self._handle, api_key, 1, errors)


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    """Run a cluster of three brokers for the context."""
    library, error = _load_library(), ctypes.create_string_buffer(_ERROR_BYTES)
    config = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(config, b"log_level", b"0", error, _ERROR_BYTES)
    client = library.rd_kafka_new(0, config, error, _ERROR_BYTES)
    assert client, error.value.decode()
    handle = library.rd_kafka_mock_cluster_new(client, 3)
    try:
        yield MockCluster(library, handle)
    finally:
        library.rd_kafka_mock_cluster_destroy(handle)
        library.rd_kafka_destroy(client)
