"""A proxy in front of Kafka brokers that delivers a producer's request late.

    proxy = KafkaProxy("127.0.0.1:9092")
    late = proxy.hold(lambda request: request.api == "EndTxn")
    ...                    # the program's next EndTxn is held, and its connection is cut
    late.deliver()         # the broker gets it now, over the connection that it came by

A network may do so: a request lies in a buffer, its connection breaks, the program repeats it over
a new one, and the broker reads the first one afterwards. The proxy stands for every broker of the
cluster: it replaces the addresses in the brokers' answers by its own ones.
"""

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, NamedTuple

from tests.late_requests.wire import Address, Request, error_code, read_request, replace_addresses

Matches = Callable[[Request], bool]
How = Literal["late", "repeated"]
"""`late`: the broker gets the request later. `repeated`: it gets it at once, and a copy later."""

_ANSWERS_S: Final = 10.0
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # linger for 0 s


class Note(NamedTuple):
    """An entry of the proxy's log."""

    at_s: float  # since the proxy began
    text: str


class LateRequest:
    """A request that waits, or will wait, to be delivered late."""

    def __init__(self, proxy: "KafkaProxy", matches: Matches, how: How) -> None:
        self._proxy, self.matches, self.how = proxy, matches, how
        self.request: Request | None = None
        self.frame = b""
        self._broker: socket.socket | None = None
        self._held, self._answered = threading.Event(), threading.Event()
        self.error: int | None = None  # the broker's answer: Kafka's error code, 0 = carried out
        self._was_repeated = False
        self.met_open = False  # whether its transactional id had an open transaction by then

    @property
    def is_held(self) -> bool:
        """Whether the request came, and its connection is cut."""
        return self._held.is_set()

    @property
    def is_answered(self) -> bool:
        """Whether the broker has answered the late request."""
        return self._answered.is_set()

    def wait_held(self, timeout_s: float) -> bool:
        """Wait until the request came; return False after `timeout_s`."""
        return self._held.wait(timeout_s)

    def wait_answered(self, timeout_s: float) -> bool:
        """Wait for the broker's answer to the late request; return False after `timeout_s`."""
        return self._answered.wait(timeout_s)

    def deliver(self, timeout_s: float = 10.0) -> int | None:
        """Deliver the request now; return the broker's error code, None if it does not answer."""
        assert self._broker is not None
        assert self.request is not None
        self.met_open = self._proxy.has_open(self.request.transactional_id)
        self._proxy.note(f"deliver {self.request.label}")
        try:
            self._broker.sendall(self.frame)
        except OSError as error:
            self._proxy.note(f"the broker has closed the connection: {error}")
            return None
        self._answered.wait(timeout_s)
        return self.error

    def deliver_before(self, matches: Matches) -> None:
        """Deliver it as soon as such a request comes, and that one once the broker has answered."""
        self._proxy.deliver_before(matches, self)

    # For the proxy.

    def take(self, request: Request, frame: bytes, broker: socket.socket) -> None:
        """Keep a request."""
        self.request, self.frame, self._broker = request, frame, broker

    def begin_to_wait(self) -> None:
        """Wait to be delivered, from now on."""
        self._held.set()

    def is_answer(self, correlation_id: int) -> bool:
        """Return whether an answer with this number is the broker's to this request."""
        return self.request is not None and self.request.correlation_id == correlation_id

    def take_answer(self, answer: bytes) -> None:
        """Keep the broker's answer; of two, if the broker gets the request twice, the last one."""
        assert self.request is not None
        if self.how == "repeated" and not self._was_repeated:
            self._was_repeated = True
            return
        self.error = error_code(self.request, answer)
        self._proxy.note(f"the broker's answer to {self.request.label}: error code {self.error}")
        self._answered.set()


class KafkaProxy:
    """Forwards connections to the brokers of a cluster. A context manager starts and ends it."""

    def __init__(self, bootstrap_servers: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """`bootstrap_servers`: brokers as `host:port`. `port`: of the first; 0 = a free one."""
        self._host, self._began_s = host, time.monotonic()
        self._lock = threading.RLock()
        self._listeners: dict[Address, socket.socket] = {}
        self._sockets: set[socket.socket] = set()
        self._wanted: list[LateRequest] = []
        self._triggers: list[tuple[Matches, LateRequest]] = []
        self._is_closed = False
        self._failure: Exception | None = None
        self._unanswered: Counter[str | None] = Counter()  # requests of transactions, by transactional id
        self._answered = threading.Condition(self._lock)
        self._open: set[str | None] = set()  # transactional ids with an open transaction
        self.log: list[Note] = []
        addresses = [self._address_for(broker, 0 if n else port) for n, broker in enumerate(_split(bootstrap_servers))]
        self.address = ",".join(f"{host}:{number}" for host, number in addresses)

    def __enter__(self) -> "KafkaProxy":
        """Return the proxy, which listens since it was made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections and ports."""
        with self._lock:
            self._is_closed = True
            closing = [*self._listeners.values(), *self._sockets]
        for each in closing:
            _shut(each)
        if self._failure is not None and kind is None:
            raise self._failure

    def hold(self, matches: Matches, how: How = "late") -> LateRequest:
        """Hold the next request that matches, and cut the program's connection."""
        late = LateRequest(self, matches, how)
        self.want(late)
        return late

    def want(self, late: LateRequest) -> None:
        """Hold the next request that `late` matches."""
        with self._lock:
            self._wanted.append(late)

    def deliver_before(self, matches: Matches, late: LateRequest) -> None:
        """Deliver `late` before the next request that matches."""
        with self._lock:
            self._triggers.append((matches, late))

    def withdraw(self, late: LateRequest) -> None:
        """Hold no request for `late` any more, and deliver none by itself."""
        with self._lock:
            self._wanted = [each for each in self._wanted if each is not late]
            self._triggers = [each for each in self._triggers if each[1] is not late]

    def note(self, text: str) -> None:
        """Add an entry to the log."""
        self.log.append(Note(time.monotonic() - self._began_s, text))

    def _address_for(self, broker: Address, port: int = 0) -> Address:
        """Return the address that stands for a broker; listen there from now on."""
        with self._lock:
            listener = self._listeners.get(broker)
            if listener is None:
                listener = self._listeners[broker] = socket.create_server((self._host, port))
                threading.Thread(target=self._accept, args=(listener, broker), daemon=True).start()
            return self._host, listener.getsockname()[1]

    def _accept(self, listener: socket.socket, broker: Address) -> None:
        while not self._is_closed:
            try:
                program, _ = listener.accept()
            except OSError:
                return
            try:
                onwards = socket.create_connection(broker, 10.0)
            except OSError:
                program.close()
                continue
            onwards.settimeout(None)
            _Connection(self, program, onwards).start()

    # Of one connection each; called in its threads.

    def keep(self, *sockets: socket.socket) -> None:
        """Close these at the proxy's end."""
        with self._lock:
            self._sockets.update(sockets)

    def forget(self, *sockets: socket.socket) -> None:
        """Close these no more."""
        with self._lock:
            self._sockets.difference_update(sockets)

    def replaced(self, request: Request, answer: bytes) -> bytes:
        """Return an answer with the proxy's addresses."""
        return replace_addresses(request, answer, self._address_for)

    def fail(self, error: Exception) -> None:
        """Keep the first error of a connection, to be raised at the end."""
        self.note(f"a message cannot be read: {error!r}")
        self._failure = self._failure or error

    def find_wanted(self, request: Request) -> LateRequest | None:
        """Return the first that waits for this request, if one does."""
        with self._lock:
            found = next((late for late in self._wanted if late.matches(request)), None)
            if found is not None:
                self._wanted.remove(found)
            return found

    def has_open(self, transactional_id: str | None) -> bool:
        """Return whether a transaction with this id has partitions, and no end yet."""
        with self._lock:
            return transactional_id in self._open

    def count_forwarded(self, request: Request) -> None:
        """Count a request that the broker gets now."""
        with self._lock:
            self._unanswered[request.transactional_id] += 1
            if request.api == "AddPartitionsToTxn":
                self._open.add(request.transactional_id)
            elif request.api == "EndTxn":
                self._open.discard(request.transactional_id)

    def count_answered(self, request: Request) -> None:
        """Count a request whose answer came, or whose connection ended."""
        with self._answered:
            self._unanswered[request.transactional_id] -= 1
            self._answered.notify_all()

    def deliver_due(self, request: Request) -> None:
        """Deliver what is to be delivered before this request, and after the answers to all others.

        Without their answers nothing says in which order the broker took them.
        """
        with self._lock:
            due = [(matches, late) for matches, late in self._triggers if late.is_held and matches(request)]
            self._triggers = [each for each in self._triggers if each not in due]
        for _, late in due:
            with self._answered:
                if not self._answered.wait_for(lambda: not self._unanswered[request.transactional_id], _ANSWERS_S):
                    self.note(f"{request.label} did not wait for the answers to all requests before it")
            late.deliver()


class _Connection:
    """A program's connection, and the proxy's to the broker."""

    def __init__(self, proxy: KafkaProxy, program: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._program, self._broker = proxy, program, broker
        self._under_way: dict[int, Request] = {}  # by correlation id
        self._late: LateRequest | None = None
        for each in (program, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.keep(program, broker)

    def start(self) -> None:
        """Forward in both directions until one side ends."""
        for work in (self._forward_requests, self._forward_answers):
            threading.Thread(target=work, daemon=True).start()

    def _forward_requests(self) -> None:
        try:
            while (frame := _read_frame(self._program)) is not None:
                request = read_request(frame[4:])
                if request.transactional_id is not None:
                    self._proxy.note(request.label)
                    self._proxy.deliver_due(request)
                    late = self._proxy.find_wanted(request)
                    if late is not None:
                        self._cut(late, request, frame)
                        return
                    self._proxy.count_forwarded(request)
                self._under_way[request.correlation_id] = request
                self._broker.sendall(frame)
        except OSError:
            pass
        except (ValueError, IndexError, struct.error) as error:
            self._proxy.fail(error)
        self._close()

    def _cut(self, late: LateRequest, request: Request, frame: bytes) -> None:
        """Keep the broker's side open for the request; the program gets RST."""
        late.take(request, frame, self._broker)
        self._late = late
        if late.how == "repeated":
            try:
                self._broker.sendall(frame)
            except OSError:
                self._late = None
                self._proxy.want(late)
                raise
        self._proxy.note(f"hold {request.label}; the connection is cut")
        late.begin_to_wait()
        self._program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        _shut(self._program)

    def _forward_answers(self) -> None:
        try:
            while (frame := _read_frame(self._broker)) is not None:
                self._take_answer(frame[4:])
        except OSError:
            pass
        except (ValueError, IndexError, struct.error) as error:
            self._proxy.fail(error)
        self._close()

    def _take_answer(self, answer: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", answer)
        request = self._under_way.pop(correlation_id, None)
        if request is not None and request.transactional_id is not None:
            self._proxy.count_answered(request)
        late = self._late
        if late is not None and late.is_answer(correlation_id):
            late.take_answer(answer)
            return
        if request is not None:
            answer = self._proxy.replaced(request, answer)
        try:
            self._program.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:
            if self._late is None:  # else the program is cut off, and the late answer is still to come
                raise

    def _close(self) -> None:
        while self._under_way:
            _, request = self._under_way.popitem()
            if request.transactional_id is not None:
                self._proxy.count_answered(request)
        for each in (self._program, self._broker):
            if self._late is None or each is self._program:
                _shut(each)
        if self._late is None:
            self._proxy.forget(self._program, self._broker)


def _split(bootstrap_servers: str) -> list[Address]:
    parts = (server.rpartition(":") for server in bootstrap_servers.split(","))
    return [(host, int(port)) for host, _, port in parts]


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def _read_frame(source: socket.socket) -> bytes | None:
    """Return a frame with its length; None at the end."""
    head = _read_exactly(source, 4)
    if head is None:
        return None
    body = _read_exactly(source, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    parts, missing = [], size
    while missing:
        part = source.recv(min(missing, 1 << 20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
