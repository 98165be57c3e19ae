"""The processor: a Faust app that hands fetched batches to the owners of their partitions.

Faust does what it is good at (the consumer group, the assignment, agents, the web server); what it would do per
message, and how it would write, is replaced in `transport.py`, `partition.py` and `outputs.py`. Faust has no table
here, so its own recovery never runs.

Stopping: the owners finish their transactions, then Faust stops, and the worker leaves its group at once.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import faust
from aiohttp import ClientSession
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from yarl import URL

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.api.sessions import ControlApi
from sessionary.stream_processors.errors import ProcessorFailed
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Ledger, Stores, Watchdog, state_folder
from sessionary.stream_processors.runtime.executor import OwnThreads
from sessionary.stream_processors.runtime.faust_transport import Assignor, BatchConsumer, BatchTransport, RecordsTopic
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.job import Job, sessions
from sessionary.stream_processors.runtime.partition_owner import Means
from sessionary.stream_processors.runtime.ticker import LOOK_S, Ticker
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
STUCK_S = 60.0
_WATCH_S = 5.0
_PROBE_S = 5.0
_TELL_S = 0.5  # twice as often as ticks come, so that lag is seen to be 0 between two of them
_STOP_S = 20.0
_REPEAT_S = 30.0
_NEVER_S = 1e9
_EXIT_STUCK = 70
# Rows and records hold no cycles. Python's default, a look at every 700 new objects, cost an eighth of the time.
_GC_THRESHOLDS = (200_000, 20, 100)
# Folding yields every 5 ms anyway; Python's own 5 ms made it hand the lock to and fro while a batch is being written.
_SWITCH_S = 0.02
_LIBRARIES = ("faust", "mode", "aiokafka")


class FaustGroup:
    """What the API asks of the group, answered by Faust."""

    def __init__(self, app: faust.App, transport: BatchTransport, topic: str) -> None:
        self._app, self._transport, self._topic = app, transport, topic

    def urls(self) -> Mapping[int, str]:
        """Return the address of each partition's owner."""
        return cast(Assignor, self._app.assignor).urls(self._topic)

    def heartbeat_s(self) -> float:
        """Return when the group last acknowledged a heartbeat."""
        return float(self._transport.heartbeat_s)

    def http(self) -> ClientSession:
        """Return Faust's HTTP client."""
        client: ClientSession = self._app.http_client
        return client


def _credentials(settings: ProcessorSettings) -> Any:
    """The connection's security in Faust's terms; None for plain text."""
    protocol = settings.security_protocol
    context = ssl.create_default_context(cafile=settings.ssl_ca_location) if protocol.endswith("SSL") else None
    if protocol.startswith("SASL"):
        password = settings.sasl_password.get_secret_value() if settings.sasl_password else None
        return faust.SASLCredentials(
            username=settings.sasl_username, password=password, mechanism=settings.sasl_mechanism, ssl_context=context
        )
    return faust.SSLCredentials(context) if context else None


def _faust_app(settings: ProcessorSettings, datadir: str) -> faust.App:
    return faust.App(
        settings.group_id,
        broker=[URL(f"kafka://{server.strip()}") for server in settings.bootstrap_servers.split(",")],
        broker_credentials=_credentials(settings),
        broker_session_timeout=settings.session_timeout_ms / 1_000,
        broker_heartbeat_interval=settings.heartbeat_ms / 1_000,
        broker_rebalance_timeout=10.0,
        # aiokafka fetches, but nobody looks at it: as little as it can, and no leaving of the group for that.
        consumer_max_fetch_size=1,
        broker_max_poll_interval=_NEVER_S,
        broker_client_id=f"sessionary-{settings.worker_name}",
        consumer_group_instance_id=settings.instance,
        consumer_auto_offset_reset="earliest",
        # The hook that hears of a rebalance first exists in this mode only; Faust's own producers stay unused.
        processing_guarantee="exactly_once",
        # Keeps Faust's own assignor, which tells every worker the others' addresses. There is no table to replicate.
        table_standby_replicas=1,
        PartitionAssignor=Assignor,
        topic_partitions=settings.partitions,
        topic_disable_leader=True,
        topic_allow_declare=False,
        stream_wait_empty=False,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        datadir=datadir,
        canonical_url=settings.api_url,
        web_enabled=settings.api_port != 0,
        web_bind=settings.api_host,
        web_host=settings.api_host,
        web_port=settings.api_port or 6066,
        web_in_thread=False,
        web_tables_enabled=False,
        web_router_enabled=False,
        web_stats_enabled=False,
        web_graph_enabled=False,
        web_metrics_enabled=False,
    )


class Processor:
    """One worker. Made and run on one event loop."""

    def __init__(self, settings: ProcessorSettings, folder: str, job: Job | None = None) -> None:
        """`job`: what is done with the partitions; the sessions by default."""
        job = job or sessions(settings)
        self._settings = settings
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._failure: str | None = None
        self._executor = OwnThreads()
        self.app = _faust_app(settings, folder)
        self.app.in_worker = True  # as under `faust worker`: else it knows no transactions, and tells of no rebalance
        self._fetcher = Fetcher(settings)
        self._means = Means(settings, job, self._metrics, self._executor, self._fetcher)
        self._probe = Consumer({**settings.client_config(), "group.id": f"{settings.group_id}.probe"})
        self._temporary = state_folder(settings) if settings.store == "rocksdb" else None
        state = settings.state_dir or (Path(self._temporary.name) if self._temporary else None)
        self.ledger = Ledger(self._means, Stores(settings, state, job.unpack))
        transport = BatchTransport(self.app.conf.broker, self.app, self.ledger, self._fetcher, settings.topics.events)
        self.app.transport = transport
        self._ticker = Ticker(settings, self._metrics)
        group = FaustGroup(self.app, transport, settings.topics.events)
        self._agent()
        if settings.api_port:
            self._pages(ControlApi(settings, self.ledger, self._metrics, group, lambda: not self._stop.is_set()))

    async def run(self) -> None:
        """Work until `stop`. Raises `ProcessorFailed`."""
        tasks: list[asyncio.Task[None]] = []
        try:
            self._fetcher.start()
            await self.app.start()
            tasks = [asyncio.create_task(part()) for part in (self._tick, self._watch, self._tell)]
            await self._wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            if positions := await self.ledger.close():
                await cast(BatchConsumer, self.app.consumer).tell(positions)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.app.stop(), _STOP_S)
            self._fetcher.close()
            self._ticker.close()
            if self._temporary is not None:
                self._temporary.cleanup()
        if self._failure is not None:
            raise ProcessorFailed(self._failure)

    def stop(self) -> None:
        """End gracefully. Call it on the event loop."""
        self._stop.set()

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        """Return when somebody asks to stop, or when a part has failed."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not stopping.done():
                await asyncio.wait([stopping, *tasks], timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
                if self.app.crashed:
                    self._failure = f"Faust failed: {self.app.crash_reason!r}"
                    return
        finally:
            stopping.cancel()

    async def _tick(self) -> None:
        while True:
            deadlines = {
                partition: owner.fold.next_deadline_ms
                for partition, owner in self.ledger.owners.items()
                if owner.is_open
            }
            self._ticker.look(time.time() * 1_000, deadlines)
            await asyncio.sleep(LOOK_S)

    async def _tell(self) -> None:
        """Commit the group's offsets now and then. The position in the changelog rules; these are for the lag."""
        told: dict[int, int] = {}
        while True:
            await asyncio.sleep(_TELL_S)
            positions = self.ledger.positions
            if positions and positions != told and await cast(BatchConsumer, self.app.consumer).tell(positions):
                told = positions

    async def _watch(self) -> None:
        watchdog = Watchdog(self.ledger, self._means, STUCK_S, self._give_up)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            ends = await loop.run_in_executor(self._executor, self._ends, list(self.ledger.owners))
            watchdog.look(ends, time.monotonic())

    def _ends(self, partitions: list[int]) -> dict[int, int]:
        """Where the log ends, of each partition that answers."""
        ends: dict[int, int] = {}
        for partition in partitions:
            with contextlib.suppress(KafkaException):
                topic = TopicPartition(self._settings.topics.events, partition)
                ends[partition] = self._probe.get_watermark_offsets(topic, timeout=_PROBE_S)[1]
        return ends

    def _give_up(self, why: str) -> None:
        """Exit at once: something hangs, and a graceful stop would wait for it."""
        _log.critical("giving up: %s", why)
        logging.shutdown()
        os._exit(_EXIT_STUCK)

    def _agent(self) -> None:
        source = RecordsTopic(
            self.app,
            topics=[self._settings.topics.events],
            key_type=bytes,
            value_type=bytes,
            partitions=self._settings.partitions,
            key_serializer="raw",
            value_serializer="raw",
            acks=False,
        )

        async def hand_over(stream: Any) -> None:
            """Faust's agent: one event is one partition's batch."""
            async for event in stream.noack().events():
                message = event.message
                self.ledger.offer(message.partition, message.generation_id, event.value)

        self.app.agent(source)(hand_over)

    def _pages(self, api: ControlApi) -> None:
        async def session(view: Any, request: Any, session_id: str) -> Any:
            return await api.session(request, session_id)

        self.app.page("/v1/sessions/{session_id}", name="session")(session)
        for path in ("healthz", "readyz", "metrics", "openapi"):
            self._page(path, getattr(api, path))

    def _page(self, name: str, answer: Any) -> None:
        async def page(view: Any, request: Any) -> Any:
            return await answer(request)

        page.__name__ = name
        self.app.page("/openapi.json" if name == "openapi" else f"/{name}", name=name)(page)


class _Seldom(logging.Filter):
    """Lets each message of a library through once in a while: with the broker away it comes many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is to be seen."""
        if not record.name.startswith(_LIBRARIES):
            return True
        place, now_s = (record.name, record.lineno), time.monotonic()
        if now_s - self._last_s.get(place, -_REPEAT_S) < _REPEAT_S:
            return False
        self._last_s[place] = now_s
        return True


def _configure_logging() -> None:
    """Log to stderr where the program has not configured anything else; Faust and aiokafka only when it matters."""
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Seldom())


def wait_for_topics(settings: ProcessorSettings, stopped: Any) -> None:
    """Wait until the broker answers; then the topics must be there. Raises `SettingsError`."""
    admin = AdminClient(settings.client_config())
    warned_s = -_REPEAT_S
    while not stopped():
        try:
            known = admin.list_topics(timeout=_PROBE_S).topics
        except KafkaException as error:
            if time.monotonic() - warned_s >= _REPEAT_S:
                warned_s = time.monotonic()
                _log.warning("no broker at %s yet: %s", settings.bootstrap_servers, error.args[0].str())
            continue
        for name in settings.topics[:-1]:
            if name not in known:
                raise SettingsError(f"topic {name} does not exist: run `sessionary topics apply`")
            if (number := len(known[name].partitions)) != settings.partitions:
                raise SettingsError(f"topic {name} has {number} partitions, SESSIONARY_PARTITIONS says otherwise")
        return


async def _main(settings: ProcessorSettings, folder: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await loop.run_in_executor(None, wait_for_topics, settings, stop.is_set)
    if stop.is_set():
        return
    processor = Processor(settings, folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, processor.stop)
    if stop.is_set():
        processor.stop()
    await processor.run()


def tune_interpreter() -> None:
    """Set the process's garbage collector and thread switching for a worker."""
    gc.freeze()  # what is imported stays
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)


def run_processor(settings: ProcessorSettings) -> None:
    """Run a worker until SIGTERM or SIGINT, then end gracefully. Blocks; call it in the main thread.

    Raises `SettingsError` where the topics are not as they should be, `ProcessorFailed` where the worker cannot go on.
    """
    _configure_logging()
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="sessionary-faust-") as folder:
        asyncio.run(_main(settings, folder))


__all__ = ["STUCK_S", "Processor", "run_processor", "tune_interpreter", "wait_for_topics"]
