"""The members of a group of workers as Kafka names them: what each says of itself by its client id.

    sessionary-w1+host-a-4711+tokens
               │  │           └ a secret that this worker has, and the others must have
               │  └ the process
               └ the worker's name

A worker reads this before it joins: it must not join beside others without a secret that they have.
And now and then afterwards: no other process may have its name.
"""

import os
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.kafka.clients import AdminConnection, take_answer
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import ProcessorSettings

_START: Final = "sessionary-"
_TIMEOUT_S: Final = 3.0
_CHANGES: Final = 2  # one may be of this process, which joined again


class Member(NamedTuple):
    """A member of a group. `name` is that of the worker; `host` is the address that Kafka sees.

    `member_id` is Kafka's: each process that takes the place of a static member gets a new one.
    Kafka keeps the client id and host of the first one all the while.
    """

    name: str
    process: str
    host: str
    secrets: frozenset[str]
    member_id: str = ""

    def __str__(self) -> str:
        return f"{self.process} at {self.host}"


class _Secret(NamedTuple):
    """What a worker needs to have if others have it. `setting`: where it is given."""

    name: str
    setting: str
    consequence: str


TOKENS: Final = _Secret(
    "tokens",
    "SESSIONARY_API_TOKENS or SESSIONARY_API_TOKENS_FILE",
    "it would refuse each request for its partitions",
)
SECRETS: Final = (TOKENS,)


def secrets_of(settings: ProcessorSettings) -> frozenset[str]:
    """Return the names of the secrets that a worker's settings have."""
    has_tokens = bool(settings.api_tokens) or settings.api_tokens_file is not None
    return frozenset({TOKENS.name} if has_tokens and settings.api_port else ())


def client_id(settings: ProcessorSettings) -> str:
    """Return the client id by which this process is a member."""
    process = f"{socket.gethostname()}-{os.getpid()}"
    return "+".join((f"{_START}{settings.worker_name}", process, *sorted(secrets_of(settings))))


def parse_member(member_client_id: str, host: str) -> Member:
    """Return what a client id says; that of another release says a name only."""
    name, process, *secrets = (*member_client_id.removeprefix(_START).split("+"), "")[: member_client_id.count("+") + 2]
    return Member(name, process or name, host.lstrip("/"), frozenset(filter(None, secrets)))


def list_members(connection: AdminConnection, group: str) -> list[Member]:
    """Return the members; one that was killed counts until its session timeout.

    Blocks for up to 4 s. Raises `Lost` if Kafka does not answer.
    """
    try:
        asked = connection.open_client().describe_consumer_groups([group], request_timeout=_TIMEOUT_S)
        found = take_answer(asked[group], _TIMEOUT_S).members
        return [parse_member(one.client_id, one.host)._replace(member_id=one.member_id) for one in found]
    except (KafkaException, TimeoutError) as error:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if cause is not None and cause.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        connection.end_client()
        why = "no answer in time" if cause is None else cause.str()
        raise Lost(f"Kafka does not answer which members the group {group} has: {why}") from None


def find_namesakes(members: Iterable[Member], own_client_id: str) -> list[Member]:
    """Return the members of the own name that are other processes."""
    own = parse_member(own_client_id, "")
    return [one for one in members if one.name == own.name and one.process != own.process]


class NameWatch:
    """Finds the other processes by the name of this one, from several looks at the group.

    A worker that was killed and comes back in time takes the place of its former process, whose
    client id Kafka goes on to show: no other one has the name. Another process that lives takes the
    place back at its next heartbeat, so the place changes hands at each look.
    """

    def __init__(self, own_client_id: str) -> None:
        """Nothing was looked at yet."""
        self._own = own_client_id
        self._held: frozenset[str] | None = None  # places of this name that the last look found
        self._changes = 0  # looks in a row that found another place

    def look(self, members: Sequence[Member]) -> tuple[list[Member], bool]:
        """Return the other processes, and whether this one is to join again without the name."""
        found, process = find_namesakes(members, self._own), parse_member(self._own, "").process
        is_shown = any(one.process == process for one in members)
        held, self._held = self._held, frozenset(one.member_id for one in found)
        self._changes = self._changes + 1 if held and self._held.isdisjoint(held) else 0
        if not is_shown and self._changes < _CHANGES:
            return [], False
        return found, bool(found) and not is_shown


def group_by_name(members: Iterable[Member]) -> dict[str, list[Member]]:
    """Return the members of each name that several processes have, one of each process.

    A process that replaced its client is a member twice until the former one's session timeout.
    """
    found: dict[str, dict[str, Member]] = {}
    for one in members:
        found.setdefault(one.name, {})[str(one)] = one
    return {name: list(ones.values()) for name, ones in found.items() if len(ones) > 1}


def require_secrets(settings: ProcessorSettings, members: Sequence[Member]) -> None:
    """Raise `SettingsError` if another worker of the group has a secret that this one lacks.

    A worker without a control API needs none.
    """
    own = secrets_of(settings)
    for secret in SECRETS if settings.api_port else ():
        others = [one for one in members if secret.name in one.secrets and one.name != settings.worker_name]
        if others and secret.name not in own:
            named = ", ".join(f"{one.name} ({one})" for one in others)
            raise SettingsError(
                f"{secret.setting}: not set, but the group {settings.group_id} has workers with {secret.name}: "
                f"{named}. This worker does not join them, for {secret.consequence}"
            )
