"""An admin client for questions that are asked again and again, and the answers to them."""

from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sessionary.schemas.kafka.clients import discard_client
from sessionary.schemas.settings import KafkaSettings

_LATE_S: Final = 1.0  # the client reports a request's time-out itself, this much later at most
T = TypeVar("T")


class AdminConnection:
    """Opens an admin client when it is needed, and another one after a failure. For one thread.

    librdkafka may lose its last broker for ever: a node that was frozen answers for a moment that
    the cluster has no broker (librdkafka issue 5301). So a caller that gets no answer ends the
    client; the next question goes out by a new one, and an answer proves that brokers can be
    reached.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to nothing yet."""
        self._config = {**settings.client_config(), "allow.auto.create.topics": False}
        self._client: AdminClient | None = None

    def open_client(self) -> AdminClient:
        """Return the client; it connects in the background. Do not keep it."""
        if self._client is None:
            self._client = AdminClient(self._config)
        return self._client

    def end_client(self) -> None:
        """Disconnect, in the background."""
        client, self._client = self._client, None
        if client is not None:
            discard_client(client)

    def free_client(self) -> None:
        """Disconnect in the caller's thread.

        Blocks until librdkafka's threads have ended; each may wait for the address of a broker's
        name. Other threads of the process go on meanwhile.
        """
        self._client = None


def take_answer(answer: Future[T], timeout_s: float) -> T:
    """Return the answer to a request whose own time-out is `timeout_s`.

    Blocks for that long, and a second more at most. Raises `KafkaException`, `TimeoutError`.

    A future keeps its error, and the error's traceback keeps the frames that it passed. So if
    `Future.result` raised, client, future and error would hold each other, and the client's threads
    would stay until a full garbage collection, which a process that allocates little does not have
    for hours.
    """
    error = answer.exception(timeout_s + _LATE_S)
    if error is None:
        return answer.result()
    raise KafkaException(*error.args) if isinstance(error, KafkaException) else error
