"""The worker: a process that joins the group, owns partitions and answers the control API.

Faust is the worker's frame, the member of the group (with the assignment) and the web server. It
carries no event and recovers no table: the fetcher hands batches to the owners of their partitions,
and each owner writes its own transactions. Streams run only for the agents that a user brings.

Stopping: the worker leaves its group, and continues folding until other workers have its
partitions. Then the owners end, and Faust stops. A worker that fails, or is alone, folds no longer.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEnd, LogEndClient, LogProgress, StalledPartition
from sessionary.schemas.telemetry.role_logs import end_hung_process, error_fields, role_logger
from sessionary.schemas.telemetry.role_traces import role_tracer
from sessionary.stream_processors.api.operators.partitions import PartitionApi
from sessionary.stream_processors.api.operators.rules import RulesApi
from sessionary.stream_processors.api.operators.session_events import (
    EventSender,
    MigrationPages,
    PeoplePages,
    SessionEvents,
)
from sessionary.stream_processors.api.pages import serve_pages
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.sessions import ControlApi
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core_build import core_build
from sessionary.stream_processors.errors import Lost, ProcessorFailed
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.group_members import NameWatch, client_id, list_members, parse_member
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.executor import UnboundedExecutor
from sessionary.stream_processors.runtime.faust_transport import Assignor, FaustGroup, MemberConsumer, MemberTransport
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.job import Job, processor_job
from sessionary.stream_processors.runtime.log_identity import LogClient, TopicIds, ask_topic_ids
from sessionary.stream_processors.runtime.log_probe import LogProbe, find_traces, probe_log
from sessionary.stream_processors.runtime.ticker import Ticker, look_pause_s
from sessionary.stream_processors.runtime.watchdog import (
    StuckLimits,
    StuckPartitionWatchdog,
    TruncationWatchdog,
    halt_replaced,
)
from sessionary.stream_processors.runtime.worker_context import TraceBatch, WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.signing_keys import KeyFile
from sessionary.stream_processors.store.stores import PartitionStores, temporary_state_folder
from sessionary.stream_processors.streams.agents import check_agent_topics, load_agents
from sessionary.stream_processors.streams.sessions_table import SessionsTable
from sessionary.stream_processors.streams.stream_transport import StreamTransport
from sessionary.stream_processors.worker_gauges import (
    OpenTransactionWatch,
    WorkerGauges,
    count_rows,
    join_ends,
)

_log = role_logger(__name__)
# A partition that is opened again is fetched from its position. If the position still does not
# move, the cause lies outside of this process, or needs a new process.
STUCK_LIMITS = StuckLimits(reopen_s=30.0, give_up_s=90.0)
READY_S = 15.0  # a worker is not ready while a partition has stood still for this long although its log grows
_ENDS_EACH_S = 1.0  # a lag shows within two seconds
_WATCH_EACH = 5  # turns
_ENDS_S = 5.0  # an answer about the ends of the logs may take twice as long
_TRANSACTIONS_EACH = 3  # turns; two looks and their answers within 10 s
_HIGH_S = 2.0
_REPORT_S = 0.5  # twice as often as ticks come, so that the lag is seen to be 0 between two of them
_REPORT_A_PARTITION_S = 0.004
_REREAD_S = 1.0  # files of tokens and keys that changed
_NAMES_S = 5.0
_STOP_S = 20.0
# A worker that left its group folds for so long at most: longer than a rebalance takes and an
# opening, but with both waits for the owners shorter than the patience of what stops processes.
_HAND_OVER_S = 5.0
_UNWELL_S = 15.0  # no turn of the fetching takes nearly as long


class Processor:
    """One worker. Make it and run it on one event loop."""

    def __init__(self, settings: ProcessorSettings, folder: str, job: Job | None = None) -> None:
        """`folder`: for Faust's files. `job`: the work on partitions; default: `processor_job`.

        Raises `SettingsError` if the token file or the Faust agents of the settings cannot be used.
        """
        job = job or processor_job(settings)
        self._settings = settings
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._failure: str | None = None
        self._has_joined = False
        self._executor = UnboundedExecutor()
        self._tokens = TokenStore(settings, self._metrics)
        self._key_file = KeyFile(settings)
        self._fetcher = Fetcher(settings)
        self._fold_progress = LogProgress()
        self._looped_s = self._watched_s = time.monotonic()
        self._knows_topic_ids = True  # by the last answer
        self._ticker = Ticker(settings, self._metrics)
        self._event_sender = EventSender(settings)
        self._temporary = temporary_state_folder(settings)
        state = settings.state_dir or (Path(self._temporary.name) if self._temporary else None)
        log_client = LogClient(settings)
        self._context = WorkerContext(
            *(settings, job, self._metrics, self._executor, self._fetcher),
            trace_batch=_batch_tracer(settings),
            rules_of_group=lambda: cast(Assignor, self.app.assignor).rules_known_by_all(),
            topic_ids=log_client.ask_ids,
            changelog_end=log_client.ask_changelog_end,
            find_traces=partial(find_traces, settings, job.traces),
        )
        stores = PartitionStores(settings, state, job.row_codec)
        self.assignment = Assignment(self._context, stores, lambda: transport.heartbeat_s)
        self.app = make_faust_app(settings, folder)
        make_transport = StreamTransport if settings.faust_agents else MemberTransport
        transport = make_transport(self.app.conf.broker, self.app, self.assignment, settings.topics.events)
        self.app.transport = transport
        folder_of_state = state if settings.store == "rocksdb" else None
        self._gauges = WorkerGauges(
            self.assignment, stores, self._fetcher, self._ticker, lambda: transport.heartbeat_s, folder_of_state
        )
        self._gauges.serve(self._metrics)
        self._follower = job.follower
        if job.follower is not None:
            for name, read in job.follower.gauges.items():
                self._metrics.read_at_scrape(name, read)
        self.sessions = SessionsTable(self.app, self.assignment, settings.partitions)
        self._agent_topics = load_agents(settings, self.app, self.sessions)
        # Without an agent or a stream: records do not pass through Faust.
        self.app.topics.add(self.app.topic(settings.topics.events, partitions=settings.partitions, acks=False))
        self._end_streams: Callable[[], None] = lambda: None
        if settings.api_port:
            self._serve_api(FaustGroup(self.app, transport))

    def _serve_api(self, group: FaustGroup) -> None:
        settings, tokens, assignment = self._settings, self._tokens, self.assignment
        others = OtherWorkers(settings, group)
        log_client = LogClient(settings)  # its own: the other one waits while partitions open

        async def ask_end(partition: int) -> int:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, log_client.ask_events_end, partition)

        api = ControlApi(
            settings,
            tokens,
            assignment,
            self._metrics,
            others,
            ask_end,
            self._is_running,
            self._stalled_partitions,
            self._find_hung_part,
        )
        events = SessionEvents(settings, tokens, assignment, others, self._event_sender.send_event)
        self._end_streams = api.following.end_streams
        serve_pages(
            self.app.web,
            api,
            PartitionApi(settings, tokens, assignment, others),
            RulesApi(settings, tokens, assignment, others),
            PeoplePages(events),
            MigrationPages(events),
        )

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises `ProcessorFailed`, and `SettingsError` if a topic of a Faust agent is missing or has
        another number of partitions.
        """
        if self._agent_topics:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, check_agent_topics, self._settings, self._agent_topics, self._stop.is_set
            )
        tasks: list[asyncio.Task[None]] = []
        try:
            self._fetcher.start(self.assignment.offer_records, self.assignment.halt_partition)
            duties = (
                self._send_ticks,
                self._join_group,
                self._watch_partitions,
                self._report_offsets,
                self._reread_files,
                self._watch_names,
                self._count_rows,
            )
            tasks = [asyncio.create_task(duty()) for duty in duties]
            await self._wait_for_end(tasks)
            self._end_streams()
            for task in tasks[1:]:  # ticks continue
                task.cancel()
            if self._failure is None:
                await self._hand_over()
        finally:
            self.stop()  # from here on no part has to make turns, also if one failed
            for task in tasks:
                task.cancel()
            await self.assignment.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.app.stop(), _STOP_S)
            self._fetcher.close()
            self._ticker.send_acknowledgements(time.time() * 1_000, self._context.acknowledged, idle_ms=0)
            self._ticker.close()
            self._event_sender.close()
            if self._follower is not None:
                self._follower.close()
            if self._temporary is not None:
                self._temporary.cleanup()
        if self._failure is not None:
            raise ProcessorFailed(self._failure)

    async def _hand_over(self) -> None:
        """Leave the group, and fold until other workers have taken the partitions, 5 s at most."""
        consumer, opened = cast(MemberConsumer, self.app.consumer), await self.assignment.prepare_leaving()
        if opened:
            await consumer.commit_offsets(opened, self.assignment.events_topic_id)
        # A worker with all partitions may be the only one; then none would be taken.
        if await consumer.leave_group() and len(self.assignment.owners) < self._settings.partitions:
            await self.assignment.wait_until_taken(_HAND_OVER_S)

    def stop(self) -> None:
        """End gracefully. Call it on the event loop."""
        self._stop.set()

    def _is_running(self) -> bool:
        return not self._stop.is_set()

    def _find_hung_part(self) -> str | None:
        still_s = self._fetcher.still_s
        return f"fetching has hung for {still_s:.0f} s" if still_s > _UNWELL_S else None

    def read_turns(self) -> dict[str, float]:
        """Return when each part that must not hang last turned, monotonic; none at the end."""
        if self._stop.is_set():
            return {}
        return {
            "the event loop": self._looped_s,
            "fetching": self._fetcher.turned_s,
            "the watch over partitions": self._watched_s,
        }

    async def _count_rows(self) -> None:
        await count_rows(lambda: [owner.state for owner in self.assignment.owners.values() if owner.is_open])

    async def _wait_for_end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Return when `stop` was called or Faust failed; raise what a task raised."""
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

    async def _join_group(self) -> None:
        """Start Faust, which waits for the first assignment; the partitions work meanwhile."""
        try:
            await self.app.start()
        except KafkaError as error:
            raise ProcessorFailed(f"the worker cannot join its group: {error}") from error
        self._has_joined = True
        await self._stop.wait()  # as the other duties, it does not end before the worker

    async def _send_ticks(self) -> None:
        while True:
            self._looped_s = time.monotonic()
            opened = [owner for owner in self.assignment.owners.values() if owner.is_open]
            announced = {
                owner.partition: rules for owner in opened if (rules := owner.state.position.announced) is not None
            }
            deadlines = {owner.partition: owner.tick_deadline_ms for owner in opened}
            now_ms = time.time() * 1_000
            self._ticker.send_due_activations(now_ms, announced)
            self._ticker.send_acknowledgements(now_ms, self._context.acknowledged)
            self._ticker.send_due_ticks(now_ms, deadlines)
            if self._follower is not None:
                self._follower.attend(now_ms, {owner.partition: owner.state for owner in opened})
            await asyncio.sleep(look_pause_s(len(opened)))

    async def _report_offsets(self) -> None:
        """Commit the group's offsets, for lag monitoring only: the changelog holds the position."""
        reported: dict[int, int] = {}
        was_ready = False
        while True:
            # A commit names each partition that moved.
            await asyncio.sleep(max(_REPORT_S, _REPORT_A_PARTITION_S * len(self.assignment.owners)))
            if (is_ready := self.assignment.is_ready and self._has_joined) and not was_ready:
                _log.info(
                    "processor is ready: %(partitions)d partitions",
                    partitions=len(self.assignment.owners),
                    core=core_build(),
                )
            was_ready = is_ready
            next_offsets = self.assignment.next_offsets
            if self.assignment.is_rebalancing:
                continue  # aiokafka answers a refused commit by joining the group as a new member
            if next_offsets and next_offsets != reported:
                consumer = cast(MemberConsumer, self.app.consumer)
                if await consumer.commit_offsets(next_offsets, self.assignment.events_topic_id):
                    reported = next_offsets

    async def _watch_partitions(self) -> None:
        connection = AdminConnection(self._settings)
        ends_client = LogEndClient(connection, committed_only=True)
        high_client = LogEndClient(connection, committed_only=False)
        transactions = OpenTransactionWatch(self._metrics)
        fetched_to = self._fetcher.fetched_to
        stuck = StuckPartitionWatchdog(self.assignment, self._metrics, STUCK_LIMITS, self._give_up, fetched_to)
        truncation = TruncationWatchdog(self.assignment)
        for turn in itertools.count(1):
            await asyncio.sleep(_ENDS_EACH_S)
            # The high watermarks are asked for first: then, without an open transaction, the stable
            # ends are never the lower ones.
            high = None if turn % _TRANSACTIONS_EACH else await self._ask_ends(high_client, _HIGH_S)
            positions, asked_at_s = self.assignment.open_positions, time.time()
            log_ends = await self._ask_ends(ends_client, _ENDS_S)
            if ends_client.partition_count not in (None, self._settings.partitions):
                self._fail(
                    f"topic {self._settings.topics.events} now has {ends_client.partition_count} partitions instead of "
                    f"{self._settings.partitions}: clients send events of running sessions to other partitions, which "
                    "do not know them. Stop the clients, and begin again under another SESSIONARY_TOPIC_PREFIX"
                )
                return
            ends, now_s = {partition: end.offset for partition, end in log_ends.items()}, time.monotonic()
            self._gauges.observe_log_ends(ends, asked_at_s)
            if high is not None:
                transactions.observe(join_ends(high, log_ends))
            if turn % _WATCH_EACH:
                continue
            self._watch_fetching(ends, now_s)
            for partition, position in stuck.find_suspects(ends, now_s).items():
                log = await self._look_into_log(partition, position)
                if log is not None and log.first_offset is None:
                    ends[partition] = position  # only aborted records are behind it
            stuck.check_progress(ends, time.monotonic())
            # Before the ends are compared: another log's end would be taken for a loss of this one.
            if (topic_ids := await self._ask_topic_ids(connection)) is not None:
                halt_replaced(self.assignment, topic_ids, self._settings.topics)
            for partition in truncation.check_ends(positions, log_ends):
                log = await self._look_into_log(partition, positions[partition].next_offset)
                if log is not None:
                    truncation.check_log(partition, positions[partition], log)

    async def _watch_names(self) -> None:
        """Look now and then if another process of the group has this worker's name."""
        connection, own = AdminConnection(self._settings), client_id(self._settings)
        group, loop = self._settings.group_id, asyncio.get_running_loop()
        names, known = NameWatch(own), set[str]()
        while True:
            await asyncio.sleep(_NAMES_S)
            if not self._has_joined:
                continue  # the member may be this worker's former process
            try:
                members = await loop.run_in_executor(self._executor, list_members, connection, group)
            except Lost as error:
                _log.debug("the members of the group are not known: %(error)s", **error_fields(error))
                continue
            found, gives_way = names.look(members)
            processes = {str(one) for one in found}
            if found and processes != known:
                _log.error(
                    "another process is a worker of this group by the name %(worker)s too: %(others)s; this one is "
                    "%(own_process)s. Give each its own SESSIONARY_INSTANCE, and restart one",
                    worker=self._settings.worker_name,
                    others=", ".join(map(str, found)),
                    own_process=parse_member(own, "").process,
                )
            known = processes
            if gives_way:
                await cast(MemberConsumer, self.app.consumer).give_up_instance()

    async def _ask_ends(self, client: LogEndClient, timeout_s: float) -> dict[int, LogEnd]:
        """Return the ends of the owned partitions that answer."""
        topic, owned = self._settings.topics.events, list(self.assignment.owners)
        ask = asyncio.get_running_loop().run_in_executor(self._executor, client.ask_ends, topic, owned, timeout_s)
        ends = await ask
        self._watched_s = time.monotonic()
        return ends

    async def _ask_topic_ids(self, connection: AdminConnection) -> TopicIds | None:
        """Return the ids of the topics; None without an answer, to be asked again."""
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(self._executor, ask_topic_ids, connection, self._settings.topics)
            self._knows_topic_ids = True
            return ids
        except KafkaException as error:
            if self._knows_topic_ids:  # the first failure in a row
                _log.warning("whether the topics were made again is not known: %(error)s", **error_fields(error))
            self._knows_topic_ids = False
            return None
        finally:
            self._watched_s = time.monotonic()

    def _watch_fetching(self, log_ends: Mapping[int, int], now_s: float) -> None:
        if self._fetcher.renew_if_stuck(log_ends, now_s):
            self._metrics.errors.labels("fetcher_renewed").inc()
        next_offsets = self.assignment.next_offsets.items()
        folded = {partition: self._fetcher.skip_markers(partition, offset) for partition, offset in next_offsets}
        self._fold_progress.observe(folded, log_ends, now_s)

    def _stalled_partitions(self) -> dict[int, StalledPartition]:
        return self._fold_progress.stalled_partitions(time.monotonic(), READY_S)

    async def _look_into_log(self, partition: int, offset: int) -> LogProbe | None:
        """Return a probe of the log at an offset; None without an answer, to be asked again."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, probe_log, self._settings, partition, offset)
        except Lost:
            return None
        finally:
            self._watched_s = time.monotonic()

    def _fail(self, why: str) -> None:
        """End gracefully, and have `run` raise `ProcessorFailed`."""
        _log.critical("the worker ends: %(why)s", why=why)
        self._failure = why
        self.stop()

    async def _reread_files(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_REREAD_S)
            await loop.run_in_executor(self._executor, self._tokens.refresh)
            await loop.run_in_executor(self._executor, self._key_file.refresh)

    def _give_up(self, why: str) -> None:
        """Exit at once: something hangs, and a graceful stop would wait for it."""
        _log.critical("the worker gives up: %(why)s", why=why)
        end_hung_process()


def _batch_tracer(settings: ProcessorSettings) -> TraceBatch:
    """Return the tracer of committed batches. Raises `SettingsError` as `role_tracer` does."""
    tracer = role_tracer("processor", settings.instance)
    if tracer is None:
        return lambda *_: None
    from sessionary.stream_processors.record_spans import RecordSpans  # OpenTelemetry may be missing

    return RecordSpans(tracer, settings).trace_batch
