"""`sessionary doctor`: what is reachable, what is wrong, what to do about it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import Json, remark, say, show_rows, wants_json
from sessionary.infra.clickhouse import ClickHouse
from sessionary.infra.environment import stack_environment
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

_PACKAGES = ("sessionary", "confluent-kafka", "fastavro", "faust-streaming", "aiokafka", "clickhouse-connect", "chdb")
_TIMEOUT_S = 5.0
LAG_MESSAGES_MAX = 10_000
_KAFKA_ADVICE = "start it (sessionary up), or set SESSIONARY_BOOTSTRAP_SERVERS; check its credentials"
_CLICKHOUSE_ADVICE = "start it (sessionary up), or set SESSIONARY_CLICKHOUSE_URL and the credentials"


class Check(NamedTuple):
    """One finding; `advice` is empty where all is well."""

    check: str
    ok: bool
    found: str
    advice: str = ""


class _Wrong(Exception):
    """A check that found a fault: what was found, and what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.advice = advice


def _versions() -> str:
    found = [f"python {sys.version.split()[0]}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _broker(settings: KafkaSettings) -> str:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(settings.client_config())
    try:
        brokers = admin.list_topics(timeout=_TIMEOUT_S).brokers
    except KafkaException:
        raise _Wrong(
            f"{settings.bootstrap_servers} does not answer",
            _KAFKA_ADVICE,
        ) from None
    return f"{settings.bootstrap_servers}, {len(brokers)} node(s)"


def _topics(settings: KafkaSettings) -> str:
    from sessionary.infra.topics import topic_differences

    if wrong := topic_differences(settings):
        raise _Wrong("; ".join(wrong), "run: sessionary topics apply")
    return f"all below {settings.topic_prefix!r} as they should be, {settings.partitions} partitions each"


def _clickhouse(settings: ClickHouseSettings) -> str:
    return f"{settings.clickhouse_url}, version {ClickHouse(settings, _TIMEOUT_S).ping()}"


def _migrations(settings: ClickHouseSettings) -> str:
    from sessionary.sinks.clickhouse.migrate import check
    from sessionary.sinks.errors import OperatorError

    try:
        check(settings)
    except OperatorError as error:
        raise _Wrong(str(error), "run: sessionary db migrate") from None
    return f"database {settings.clickhouse_database} is up to date"


def _processor(environ: Mapping[str, str]) -> str:
    from sessionary.infra.stack import api_ready

    url = environ.get("SESSIONARY_CONTROL_URL")
    if url is None:
        raise _Wrong("SESSIONARY_CONTROL_URL is not set", "set it to the processor's address; resume needs it")
    if not api_ready(url, _TIMEOUT_S):
        raise _Wrong(
            f"{url} is not ready",
            "start a processor (sessionary processor); one that runs may still be reading its changelog",
        )
    return f"{url} owns its partitions"


def _sink_lag(settings: KafkaSettings, kind: str, group: str, topic: str) -> str:
    from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

    consumer = Consumer({**settings.client_config(), "group.id": group, "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, n) for n in range(settings.partitions)]
        committed = consumer.committed(places, timeout=_TIMEOUT_S)
        bounds = [consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S) for place in places]
    except KafkaException as error:
        raise _Wrong(f"unknown: {error.args[0].str()}", "see the checks of broker and topics") from None
    finally:
        consumer.close()
    lag = sum(
        high - (low if place.offset == OFFSET_INVALID else place.offset)
        for place, (low, high) in zip(committed, bounds, strict=True)
    )
    if all(place.offset == OFFSET_INVALID for place in committed) and lag:
        raise _Wrong(f"group {group} has never read, {lag} messages wait", f"start it: sessionary sink {kind}")
    if lag > LAG_MESSAGES_MAX:
        raise _Wrong(f"{lag} messages behind", f"see the log of sessionary sink {kind}; start a second one")
    return f"{lag} messages behind"


def _integrity(settings: ClickHouseSettings) -> str:
    rows = ClickHouse(settings).rows("SELECT fault, sum(rows) AS rows FROM v_integrity GROUP BY fault ORDER BY fault")
    if rows:
        found = ", ".join(f"{row['fault']}: {row['rows']}" for row in rows)
        raise _Wrong(found, "SELECT * FROM v_integrity; rows that are still under way vanish from it by themselves")
    return "nothing missing, nothing doubled"


def _checked(name: str, check: Callable[[], str], advice: str) -> Check:
    """Do one check; `advice` is for trouble of which the check itself knows none."""
    try:
        return Check(name, ok=True, found=check())
    except _Wrong as wrong:
        return Check(name, ok=False, found=str(wrong), advice=wrong.advice)
    except (SessionaryError, OSError) as error:
        return Check(name, ok=False, found=str(error), advice=advice)


def checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Do every check in order. One fault hides no other, but of a server that is away nothing more is asked."""
    kafka, clickhouse = KafkaSettings.from_env(environ), ClickHouseSettings.from_env(environ)
    yield _checked("versions", _versions, "install sessionary anew")
    yield (broker := _checked("broker", lambda: _broker(kafka), _KAFKA_ADVICE))
    if broker.ok:
        yield _checked("topics", lambda: _topics(kafka), _KAFKA_ADVICE)
    yield (store := _checked("clickhouse", lambda: _clickhouse(clickhouse), _CLICKHOUSE_ADVICE))
    if store.ok:
        yield _checked("migrations", lambda: _migrations(clickhouse), _CLICKHOUSE_ADVICE)
    yield _checked("processor", lambda: _processor(environ), "see the log of sessionary processor")
    if broker.ok:
        yield from _sink_checks(environ, kafka)
    if store.ok:
        yield _checked("integrity", lambda: _integrity(clickhouse), "run: sessionary db migrate")


def _sink_checks(environ: Mapping[str, str], kafka: KafkaSettings) -> Iterator[Check]:
    from sessionary.sinks.core.definitions import SINKS
    from sessionary.sinks.settings import SinkSettings

    settings = SinkSettings.from_env(environ)
    for kind, definition in SINKS.items():
        topic: str = getattr(kafka.topics, definition.topic)
        yield _checked(f"sink {kind}", partial(_sink_lag, kafka, kind, settings.group(kind), topic), _KAFKA_ADVICE)


def doctor(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check every part: what is reachable, what is wrong, what to do. Ends with 1 where anything is wrong."""
    found: list[dict[str, Json]] = []
    for check in checks(stack_environment(data)):
        found.append(check._asdict())
        if not wants_json(as_json):
            say(f"{'ok   ' if check.ok else 'WRONG'} {check.check}: {check.found}")
            if check.advice:
                say(f"        → {check.advice}")
    if wants_json(as_json):
        show_rows(found, as_json=True)
    wrong = [check["check"] for check in found if not check["ok"]]
    if wrong:
        raise CheckFailed(f"wrong: {', '.join(wrong)}")
    remark("all is well")


__all__ = ["Check", "checks", "doctor"]
