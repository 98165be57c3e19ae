"""A session in an open partition, its followers over HTTP, and commits when a test wants them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import ClientResponse

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import RecentVerdicts
from sessionary.stream_processors.runtime.partition_owner import CommitNotifications
from tests.core.oracle_rig import SETTINGS, OracleRig
from tests.core.stream_processors.api.api_server import FakeAssignment, Server
from tests.support.event_factory import EventFactory


class Message(NamedTuple):
    """A server-sent event; a comment has no name."""

    name: str | None
    place: str | None = None
    document: Any = None


class Reader:
    """Reads a stream. Every wait is bounded."""

    def __init__(self, answer: ClientResponse) -> None:
        self.answer = answer

    async def read(self) -> Message | None:
        """Return the next message or comment; None at the end of the stream."""
        fields: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self.answer.content.readline(), 60)).decode()
            if not line:
                assert not fields, "the stream ended in the middle of a message"
                return None
            if line == "\n":
                document = json.loads(fields["data"]) if "data" in fields else None
                return Message(fields.get("event"), fields.get("id"), document)
            name, _, text = line.rstrip("\n").partition(":")
            assert name not in fields
            fields[name] = text.removeprefix(" ")

    async def read_versions(self, last: int) -> list[int]:
        """Return the versions that are reported, up to `last`."""
        versions: list[int] = []
        while not versions or versions[-1] != last:
            message = await self.read()
            assert message is not None
            if message.name == "state":
                versions.append(message.document["version"])
        return versions


class FollowedOwner:
    """The owner of the one partition; a test commits what its rig folded."""

    partition = 0

    def __init__(self, rig: OracleRig) -> None:
        self._rig = rig
        self.state = rig.fold
        self.notifications = CommitNotifications()
        self.commits = 0
        self.committed_s = time.monotonic()
        self.is_readable, self.is_open, self.halted = True, True, None
        self.recent_verdicts = RecentVerdicts()
        self.accesses: list[Any] = []
        self._reported = 0

    @property
    def position(self) -> Position:
        return self.state.position

    def commit(self) -> None:
        """Tell readers of all that was folded since, as one transaction."""
        rows = {key: row for outcome in self._rig.outcomes[self._reported :] for key, row in outcome.rows.items()}
        self._reported = len(self._rig.outcomes)
        self.commits += 1
        self.committed_s = time.monotonic()
        self.notifications.notify_commit(rows)

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self.position.next_offset <= offset:
                    await self.notifications.wait()
        except TimeoutError:
            return False
        return True

    async def wait_until_merged(self, timeout_s: float) -> bool:
        return True  # no transaction is under way


class FollowRig:
    """One worker's partition with an active session."""

    def __init__(self) -> None:
        self.rig = OracleRig(SETTINGS._replace(partitions=1))
        self.agent = EventFactory()
        self.rig.start(self.agent)
        self.owner = FollowedOwner(self.rig)
        self.owner.commit()
        self.assignment: Any = FakeAssignment()
        self.assignment.owners = {0: self.owner}
        self.version = 1
        self.path = f"/v1/sessions/{self.agent.key.session_id}"

    def update(self, text: str = "") -> None:
        """Fold an update of the session's content."""
        self.version += 1
        content = json.dumps({"n": self.version, "text": text})
        fields: dict[str, Any] = {"base_version": self.version - 1, "new_version": self.version, "state_json": content}
        assert self.rig.send(self.agent, "state_updated", **fields) == "applied"

    def send(self, event_type: str, **fields: Any) -> None:
        assert self.rig.send(self.agent, event_type, **fields) == "applied"

    def beat(self) -> None:
        self.rig.at += 1_000
        self.send("heartbeat")

    def archive(self) -> None:
        self.send("session_terminated", reason="closed")
        assert self.rig.advance(300_000, step_ms=5_000) == ["T14 archived"]

    @property
    def is_watched(self) -> bool:
        return bool(self.owner.notifications._watches)


@asynccontextmanager
async def following(
    server: Server, path: str, query: str = "", token: str = "token", **headers: str
) -> AsyncIterator[Reader]:
    """Follow a session; yields once the headers are there."""
    given = {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): text for name, text in headers.items()}}
    asked = server.client.get(f"{server.url}{path}/follow{query}", headers=given)
    async with await asyncio.wait_for(asked, 20) as answer:
        yield Reader(answer)
