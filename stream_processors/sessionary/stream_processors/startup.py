"""The steps of a process before its worker joins the group: interpreter settings, topics.

A partition that opens looks at the topics once more if its rules may write more than the newest
ones of this release.
"""

import gc
import ipaddress
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.records import Position
from sessionary.schemas.rules import newest_known
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.schemas.topics import TopicSpec, bytes_limits, topic_specs
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.group_members import list_members, require_secrets
from sessionary.stream_processors.settings import ProcessorSettings

_log = role_logger(__name__)
_PROBE_S = 5.0
_REACH_S = 3.0  # the worker says within 5 s that the broker is away
_SETTLE_S = 1.0  # a broker may report new topics and settings a moment after it has accepted them
# Rows and records hold no cycles. Python's default, a collection per 700 new objects, cost an
# eighth of the time.
_GC_THRESHOLDS = (200_000, 20, 100)
# For so long at most the event loop, which answers requests and folds, waits for the interpreter's
# lock while a transaction is written. A shorter time costs the full job nothing that is measurable.
_SWITCH_S = 0.002
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def tune_interpreter() -> None:
    """Set the process's garbage collector and thread switching for a worker."""
    gc.freeze()  # what is imported stays
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)


def wait_for_topics(settings: ProcessorSettings, is_stopped: Callable[[], bool]) -> None:
    """Wait until the broker answers or `is_stopped` returns True, then check the topics.

    Blocks. Raises `SettingsError` if a topic is missing, has another number of partitions, or a
    setting with which results would be wrong. Without the right to read settings, only a warning
    says so.
    """
    specs = [
        spec for spec in topic_specs(settings.topic_prefix, settings.partitions) if spec.name in settings.topics[:-1]
    ]
    admin = AdminClient(settings.client_config())
    is_second_answer = False
    while not is_stopped():
        try:
            known = admin.list_topics(timeout=_REACH_S).topics
            found = _describe_settings(admin, [spec.name for spec in specs if spec.name in known])
        except KafkaException as error:
            _log.warning(
                "no broker answers at %(servers)s yet: %(error)s",
                servers=settings.bootstrap_servers,
                **error_fields(error),
            )
            continue
        for name in settings.topics[:-1]:
            if name in known and (number := len(known[name].partitions)) != settings.partitions:
                raise SettingsError(
                    f"topic {name} has {number} partitions, but SESSIONARY_PARTITIONS is {settings.partitions}; "
                    "set it to the topic's number"
                )
        faults = [f"topic {spec.name} does not exist" for spec in specs if spec.name not in known]
        faults += [fault for spec in specs for fault in _setting_faults(spec, found.get(spec.name, {}))]
        if not faults:
            return
        if is_second_answer:
            raise SettingsError(f"{'; '.join(faults)}: run `sessionary topics apply`")
        is_second_answer = True
        time.sleep(_SETTLE_S)


def check_group(settings: ProcessorSettings) -> None:
    """Raise `SettingsError` if this worker must not join those that are in the group.

    Blocks for up to 4 s. If Kafka does not answer, only a warning says so.
    """
    connection = AdminConnection(settings)
    try:
        require_secrets(settings, list_members(connection, settings.group_id))
    except Lost as error:
        _log.warning("whether the other workers have tokens is not known: %(error)s", **error_fields(error))
    finally:
        connection.end_client()


def warn_of_plain_api(settings: ProcessorSettings) -> None:
    """Log a warning if the control API can be reached from other machines without TLS."""
    if settings.api_port and settings.api_tls_certificate is None and not _is_loopback(settings.api_host):
        _log.warning(
            "the control API at %(url)s is plain HTTP on an address that other machines reach: tokens and states can "
            "be read on the way. Set SESSIONARY_API_TLS_CERTIFICATE, or keep it behind a proxy that has TLS",
            url=f"http://{settings.api_host}:{settings.api_port}",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_roomy_topics(settings: ProcessorSettings, partition: int, position: Position) -> None:
    """Raise `Halted` if a topic takes less than the rules of a partition may write, by name.

    The rules are those in force and those announced. The newest rules that this worker knows were
    checked at the start, so the broker is asked only if these write more. Blocks for up to 10 s.
    Raises `Lost` without an answer.
    """
    rules = [position.rules, *([position.announced.rules] if position.announced is not None else [])]
    checked = bytes_limits(newest_known())
    most = {field: max(bytes_limits(one)[field] for one in rules) for field in checked}
    topics = settings.topics._asdict()
    needed = {topics[field]: size for field, size in most.items() if size > checked[field]}
    if not needed:
        return
    try:
        found = _describe_settings(AdminClient(settings.client_config()), list(needed))
    except KafkaException as error:
        raise Lost(f"partition {partition}: the settings of {', '.join(needed)}: {error.args[0]}") from error
    lacking = [
        f"{name} has max.message.bytes={limit}, and needs {size}"
        for name, size in needed.items()
        if (limit := found.get(name, {}).get("max.message.bytes")) is not None and int(limit) < size
    ]
    if lacking:
        raise Halted(
            "record_too_large",
            f"partition {partition} is judged by rules of another release, which may write larger records than this "
            f"one's: topic {'; topic '.join(lacking)}. Raise that, then run: sessionary partition retry {partition}",
        )


def _describe_settings(admin: AdminClient, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Return the settings of each topic that may be read. Raises `KafkaException`."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found: dict[str, dict[str, str | None]] = {}
    unreadable: list[str] = []
    answers = admin.describe_configs(resources, request_timeout=_PROBE_S) if resources else {}
    for resource, answer in answers.items():
        try:
            found[resource.name] = {name: entry.value for name, entry in answer.result(2 * _PROBE_S).items()}
        except KafkaException as error:
            if error.args[0].code() not in _FORBIDDEN:
                raise
            unreadable.append(resource.name)
    if unreadable:
        _log.warning(
            "settings of %(topics)s are not checked: this worker may not read them (DescribeConfigs). "
            "`sessionary doctor` compares them, run by a user who may",
            topics=", ".join(sorted(unreadable)),
        )
    return found


def _setting_faults(spec: TopicSpec, found: Mapping[str, str | None]) -> list[str]:
    """Return a sentence per wrong required setting; one that no broker reported is not wrong."""
    return [
        f"topic {spec.name} has {name}={found[name]}, but needs {wanted}"
        for name, wanted in spec.wrong_settings(found).items()
        if name in spec.required and name in found
    ]
