"""Tells ClickHouse where a running sink stands, so that `v_integrity` knows it without Kafka.

By its tables alone, a ClickHouse that was emptied is one that never had a row, and an offset that
was moved to the log's end is one that was read up to there.
"""

import threading
from typing import Final

from confluent_kafka import KafkaException

from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.kafka.admin_connection import AdminConnection
from sessionary.schemas.kafka.topic_ids import ask_topic_id
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.sinks.clickhouse.connection import connect, run_statement
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.integrity.landed_ends import LandedEnd, read_landed_ends
from sessionary.sinks.settings import SinkSettings

# Longer than ticks may wait for their block. A report reads a few records of each partition.
EVERY_S: Final = 120.0
_ASK_S: Final = 5.0
_STOP_S: Final = 1.0
_TIMEOUT_S: Final = 30
_COLUMNS: Final = "sink, consumer_group, partition, topic_id, committed, log_start, log_end, last_offset"
_log = role_logger(__name__)


class EndReport:
    """Reports the ends of one sink's group, on a thread of its own."""

    def __init__(self, kind: SinkKind, settings: SinkSettings) -> None:
        self._kind = kind
        self._settings = settings
        self._topic: str = getattr(settings.topics, SINKS[kind].topic)
        self._connection = AdminConnection(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="end-report", daemon=True)

    def start(self) -> None:
        """Begin to report, the first time after `EVERY_S` seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Report no more. Waits for a second at most; a report under way ends by itself."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def report_once(self) -> None:
        """Report now. Blocks. Raises `Unavailable`, `OperatorError`, `SettingsError`."""
        try:
            topic_id = ask_topic_id(self._connection, self._topic, _ASK_S)
        except KafkaException as error:
            raise Unavailable(f"{self._topic}: {error.args[0].str()}", 2.0) from error
        ends = read_landed_ends(self._settings, self._kind)
        if not ends:
            return
        group, database = self._settings.group_id(self._kind), self._settings.clickhouse_database
        place = f"'{self._kind}', '{group}'"
        rows = ", ".join(f"({place}, {_end_values(end, topic_id)})" for end in ends)
        client = connect(self._settings, _TIMEOUT_S)
        try:
            run_statement(client, f"INSERT INTO {database}.landed_ends ({_COLUMNS}) VALUES {rows}")
        finally:
            client.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.report_once()
            # It is told again soon. A file that a setting names may be away for a moment only.
            except (Unavailable, OperatorError, SettingsError) as error:
                _log.info("where the sink stands is not told: %(error)s", **error_fields(error))


def _end_values(end: LandedEnd, topic_id: str | None) -> str:
    last = "NULL" if end.last_offset is None else end.last_offset
    return f"{end.partition}, '{topic_id or ''}', {end.committed}, {end.log_start}, {end.log_end}, {last}"
