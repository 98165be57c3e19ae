"""Records of the events topic as no agent should send them; the seed decides everything.

About half of them decode. The rest are cut, damaged, oversized or made up. To get far, the fuzzer
looks at the rows of the fold that judges its records, and mostly sends what a session's state
allows.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Message

from sessionary.schemas.codec import CONFLUENT, SINGLE_OBJECT, encode_record
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.headers import HeaderSource
from sessionary.schemas.ids import partition_of, run_key
from sessionary.schemas.records import Position, SessionState, Tick
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from sessionary.stream_processors.core.run.transitions import RUN_EVENTS
from sessionary.stream_processors.core.session.transitions import WORK as ALL_WORK
from tests.core.random_agents import AGENT_FIELDS, INVALID_ENVELOPES, LIMITS, NEXT_EVENTS, SHORT
from tests.core.run_moves import ARTIFACT_WAY, ERRORS, RUN_IDS, WORK, draw_child_event, draw_run_event, draw_run_marks
from tests.support.broken_headers import BrokenMessage
from tests.support.event_factory import TICK, EventFactory, snapshot
from tests.support.signing import KEYS, claims_authority
from tests.support.sink_records import audit_record, batch_record

PARTITIONS = 4
PROCESSOR_EVENTS = ("session_timed_out", "session_archived", "tool_call_unknown")
FOREVER = Limits(**dict.fromkeys(Limits._fields[:-1], 10**12), override=True)
_ODD_TEXTS = ("", "\0", "a\0b", "\u202e", "😀" * 40, "\ud7ff", "x" * 129, "{" * 3_000, "%s", "'; DROP TABLE audit")
_NUMBERS = (0, -1, 1, 1 << 31, (1 << 63) - 1, -(1 << 63))
_FAR_NUMBER = 1 << 62
_TEXT_FIELDS = ("event_id", "user_id", "agent_id", "agent_role", "service_id", "actor", "producer_id", "run_id")
_NUMBER_FIELDS = ("occurred_at", "context_bytes", "run_seq")
_OTHER_RECORDS = (
    encode_record(Position(1, 2, 3, 4, 5)),
    encode_record(audit_record(1, 1)),
    encode_record(batch_record(0, 1)),
)
_BAD_KEYS = (None, b"", b"acme:x", b"\xff", b"\0position", b"acme:" + b"\0" * 36, b"k" * 40_000)
_STARTABLE = (*LIMITS[:10], *[Limits(max_duration_ms=20_000)] * 4)
_TICK_MS = (1, *(900, 1_000, 2_500, 5_000) * 10, 5_001)  # the last one makes an outage
_FORGED_BELOW = 0.15  # of what only a server role may write, the share without a signature
_CROWD = 90  # producers of one session, more than it takes
_LARGE_EVERY = 400  # records
_UNSOUND_SHARE_MIN = 0.45  # of all records: those that are made so that they do not decode; a few do
_CONTENT_CHARS = (100_000, *[2_200_000] * 4)
_LARGE_BYTES = (70_000, 700_000, 1_250_000, 1_250_000, 3_000_000)


Maker = tuple[Callable[[], None], float]  # makes one record or a few; its relative frequency


class FuzzedRecord(NamedTuple):
    """A record, and by how much its append time is later than the former one's."""

    key: bytes | None
    value: bytes | None
    header_source: HeaderSource
    later_ms: int = 0


class RecordFuzzer:
    """Makes records. `rows` are those of the fold, after all records made so far."""

    def __init__(self, seed: int, row_of: Callable[[bytes], Any]) -> None:
        self._random, self._seed = Random(seed), seed
        self._row_of = row_of
        self._queue: deque[tuple[bytes | None, bytes | None]] = deque()
        self._recent: deque[tuple[bytes | None, bytes]] = deque(maxlen=50)
        self._made = self._named = self._unsound = 0
        self._agents = [self._new_agent() for _ in range(6)]
        self._crowd = self._new_agent()  # of a session that never ends

    def next_record(self) -> FuzzedRecord:
        """Return the next record."""
        self._made += 1
        if self._made % _LARGE_EVERY == 0:
            return self._with_headers(*self._large_record())
        if not self._queue and self._recent and self._unsound < _UNSOUND_SHARE_MIN * self._made:
            self._damage_value()
        elif not self._queue:
            makers, weights = zip(*self._makers(), strict=True)
            self._random.choices(makers, weights)[0]()
        key, value = self._queue.popleft()
        if key is None and value == TICK:
            return FuzzedRecord(None, TICK, Message("t", 0, 0), self._random.choice(_TICK_MS))
        return self._with_headers(key, value)

    def _makers(self) -> list[Maker]:
        """Return what makes one record or a few, with relative frequencies."""
        return [
            (self._send_sensible, 26),
            (self._send_any_type, 15),
            (self._send_odd_values, 5),
            (self._send_forged, 4),
            (self._skip_or_repeat_numbers, 5),
            (self._start_session, 5),
            (self._send_run_event, 12),
            (self._send_child_event, 12),
            (self._make_artifact, 2),
            (self._recover_again, 3),
            (self._send_stale, 1),
            (self._confirm_release, 3),
            (self._crowd_session, 6),
            (self._send_elsewhere, 3),
            (self._tick, 5),
            (self._fall_silent, 1),
            (self._damage_value, 92),
            (self._make_up_value, 42),
        ]

    # Sessions and their agents

    def _new_agent(self) -> EventFactory:
        """Return the agent of a new session whose key belongs to partition 0."""
        while True:
            self._named += 1
            tenant = self._random.choice(("acme", "zeta"))
            agent = EventFactory(
                f"fuzzed-{self._seed}-{self._named}", tenant, producer=self._random.choice(("p1", "p2"))
            )
            if partition_of(agent.key.encoded(), PARTITIONS) == 0:
                return agent

    def _pick_agent(self) -> EventFactory:
        place = self._random.randrange(len(self._agents))
        row = self._row_of(self._agents[place].key.encoded())
        is_archived = row is not None and not isinstance(row, SessionState)
        if self._random.random() < (0.2 if is_archived else 0.005):
            self._agents[place] = self._new_agent()
        return self._agents[place]

    def _state_of(self, agent: EventFactory) -> SessionState | None:
        row = self._row_of(agent.key.encoded())
        return row if isinstance(row, SessionState) else None

    def _send(self, agent: EventFactory, event_type: str, fields: Mapping[str, Any] = {}, **envelope: Any) -> None:
        drawn = {name: self._random.choice(options) for name, options in AGENT_FIELDS.get(event_type, {}).items()}
        row = self._state_of(agent)
        if row is not None:
            agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
            # A damaged number may have been taken; whatever came below it would be rejected.
            taken = (ledger.last_seq for ledger in row.producers if ledger.producer_id == agent.producer)
            agent.seq = max(agent.seq, *(number for number in taken if number < _FAR_NUMBER), 0)
            if event_type == "state_updated":
                base = row.version + self._random.choice((0, 0, 0, 1))
                drawn = {"base_version": base, "new_version": base + 1}
        if event_type in RUN_EVENTS and "run_id" not in envelope:
            envelope["run_id"] = self._random.choice(RUN_IDS)
        value = agent.event_bytes(event_type, envelope, **{**drawn, **fields})
        self._put(agent.key.encoded(), value)

    def _put(self, key: bytes | None, value: bytes) -> None:
        self._queue.append((key, value))
        self._recent.append((key, value))

    # Records that decode

    def _send_sensible(self) -> None:
        agent = self._pick_agent()
        row = self._state_of(agent)
        moves = [("session_created", {"limits": SHORT})] if row is None else NEXT_EVENTS[row.state]
        event_type, fields = self._random.choice(moves)
        self._send(agent, event_type, fields)

    def _pick_field(self, names: Sequence[str], values: Sequence[object]) -> dict[str, Any]:
        return {self._random.choice(names): self._random.choice(values)}

    def _send_run_event(self) -> None:
        """Send an event of a run, mostly of the session that never ends."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        run_id = self._random.choice(self._run_ids())
        event_type, fields = draw_run_event(self._random, self._row_of(run_key(*agent.key, run_id)))
        self._send(agent, event_type, fields, **draw_run_marks(self._random, run_id))

    def _run_ids(self) -> list[str]:
        return [f"{run_id}-{self._made // 1_000}" for run_id in RUN_IDS]

    def _send_child_event(self) -> None:
        """Send an event of a step, call or artifact, mostly of the session that never ends."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        move = draw_child_event(self._random, agent.key, self._row_of, self._run_ids())
        self._send(agent, move.event_type, move.fields, **move.marks)

    def _make_artifact(self) -> None:
        """Send the events of an artifact in their order, from its creation to its end."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        names = {"artifact_id": f"own-{self._made // 1_000}-{self._random.randrange(9)}"}
        for event_type, fields in ARTIFACT_WAY:
            self._send(agent, event_type, {**names, **fields})

    def _send_any_type(self) -> None:
        if self._random.random() < 0.5:
            self._send(self._pick_agent(), self._random.choice(sorted(PAYLOADS)))
        else:
            self._send(self._crowd, self._random.choice(sorted({*ALL_WORK, "checkpoint_saved"})))

    def _send_odd_values(self) -> None:
        agent = self._pick_agent()
        event_type = self._random.choice((*WORK, "heartbeat", "session_created", "session_paused", "session_errored"))
        chance = self._random.random()
        if chance < 0.4:
            self._send(agent, event_type, **self._pick_field(_TEXT_FIELDS, _ODD_TEXTS))
        elif chance < 0.7:
            self._send(agent, event_type, **self._pick_field(_NUMBER_FIELDS, _NUMBERS))
        elif chance < 0.8:
            stranger = f"odd-{self._named}"  # the agent's own count goes on
            self._send(agent, event_type, producer_id=stranger, producer_seq=self._random.choice(_NUMBERS))
        elif chance < 0.9:
            self._send(self._new_agent(), "session_created", {"limits": self._random.choice(LIMITS)})
        else:
            self._send(agent, event_type, **self._random.choice(INVALID_ENVELOPES))

    def _send_forged(self) -> None:
        """Send what only a processor or the session's owner may say."""
        agent, chance = self._pick_agent(), self._random.random()
        if chance < 0.3:
            self._send(agent, self._random.choice(("session_paused", "session_errored")), service_id="other")
        elif chance < 0.7:
            self._send(agent, self._random.choice(PROCESSOR_EVENTS))
        elif chance < 0.85:
            self._send(agent, "session_terminated", {"reason": "timeout_cleanup"})
        else:
            self._put(agent.key.encoded(), encode_record(Tick("forged")))

    def _skip_or_repeat_numbers(self) -> None:
        agent = self._pick_agent()
        if self._random.random() < 0.4:
            agent.seq += self._random.randint(1, 4)
            self._send(agent, self._random.choice(WORK))
        elif self._random.random() < 0.5 and self._recent:
            self._queue.append(self._random.choice(self._recent))
        else:
            self._send(agent, self._random.choice(WORK), producer_seq=self._random.randint(1, max(1, agent.seq)))

    def _start_session(self) -> None:
        agent = self._pick_agent()
        if self._state_of(agent) is None:
            self._send(agent, "session_created", {"limits": self._random.choice(_STARTABLE)})
        self._start_created(agent)

    def _start_created(self, agent: EventFactory) -> None:
        for phase in ("validating", "connecting"):
            self._send(agent, "session_phase_changed", {"phase": phase})
        self._send(agent, "session_started")

    def _recover_again(self) -> None:
        agent, error = self._pick_agent(), self._random.choice(ERRORS)
        row = self._state_of(agent)
        epoch = 1 if row is None else row.epoch
        for attempt in range(self._random.randint(1, 9)):  # five are allowed
            self._send(agent, "session_errored", {"error": error}, epoch=epoch + attempt)
            self._send(agent, "session_phase_changed", {"phase": "recovery"}, epoch=epoch + attempt)
            self._send(agent, "session_recovered", epoch=epoch + attempt)

    def _send_stale(self) -> None:
        """Send as if the session had not been resumed or recovered."""
        agent = self._pick_agent()
        row = self._state_of(agent)
        self._send(agent, self._random.choice(WORK), epoch=0 if row is None else row.epoch - 1)

    def _confirm_release(self) -> None:
        agent = self._pick_agent()
        row = self._state_of(agent)
        known = [cleanup.cleanup_id for cleanup in row.cleanups] if row is not None else []
        actions = [CleanupAction("close_connection", self._random.random() < 0.8, 1)] * self._random.choice((0, 2, 40))
        fields = {"cleanup_id": self._random.choice([*known[-2:] * 3, "nonsense"]), "actions": actions}
        self._send(agent, "resources_released", fields)

    def _crowd_session(self) -> None:
        """Send as one of many producers of a session that does not end."""
        agent = self._crowd
        row = self._state_of(agent)
        if row is not None and row.state != "Active" and self._random.random() < 0.2:
            agent = self._crowd = self._new_agent()  # nothing would be applied any more
            row = None
        if row is None:
            # Open runs would fill it.
            self._send(agent, "session_created", {"limits": FOREVER._replace(attached_run_ms=900_000)})
            self._start_created(agent)
            return
        producer = f"producer-{self._random.randrange(_CROWD)}"
        self._send(
            agent, self._random.choice(WORK), producer_id=producer, producer_seq=self._random.randint(1, 1 << 40)
        )

    def _send_elsewhere(self) -> None:
        """Send an event under a key that is not its own."""
        agent, other = self._pick_agent(), self._pick_agent()
        value = agent.event_bytes(self._random.choice(WORK))
        chance = self._random.random()
        if chance < 0.4:
            self._put(other.key.encoded(), value)
        elif chance < 0.7:
            self._put(self._random.choice(_BAD_KEYS), value)
        else:
            self._named += 1
            stranger = EventFactory(f"stranger-{self._seed}-{self._named}")
            self._put(stranger.key.encoded(), stranger.event_bytes("session_created"))

    def _tick(self) -> None:
        self._queue.append((None, TICK))

    def _fall_silent(self) -> None:
        """Let deadlines pass."""
        self._queue += [(None, TICK)] * self._random.randint(5, 30)

    # Records that mostly do not decode

    def _damage_value(self) -> None:
        if not self._recent:
            return self._tick()
        key, value = self._random.choice(self._recent)
        damaged, draw = bytearray(value), self._random.randrange
        chance = self._random.random()
        if chance < 0.35:
            del damaged[draw(len(damaged)) :]
        elif chance < 0.6:  # behind the fingerprint of the schema
            for _ in range(self._random.randint(1, 6)):
                damaged[10 + draw(max(1, len(damaged) - 10))] ^= 1 << draw(8)
        elif chance < 0.8:
            place = 10 + draw(max(1, len(damaged) - 10))
            damaged[place:place] = self._random.choice((b"\xff" * 9, b"\x80" * 12, b"\xc3\x28", b"\0" * 5, value[:40]))
        elif chance < 0.9:
            damaged[draw(10)] ^= 1 << draw(8)
        else:
            damaged += self._random.randbytes(draw(60) + 1)
        self._queue.append((key, bytes(damaged)))
        self._unsound += 1
        return None

    def _make_up_value(self) -> None:
        draw, noise = self._random.randrange, self._random.randbytes
        key = self._pick_agent().key.encoded()
        values: tuple[bytes | None, ...] = (
            None,
            b"",
            noise(draw(300) + 1),
            SINGLE_OBJECT + noise(8 + draw(50)),
            CONFLUENT + noise(4 + draw(50)),
            SINGLE_OBJECT + (self._recent[-1][1][2:10] if self._recent else b"") + noise(draw(200)),
            b'{"event_type": "session_created"}',
            self._random.choice(_OTHER_RECORDS),
        )
        self._queue.append((self._random.choice((key, key, key, *_BAD_KEYS)), self._random.choice(values)))
        self._unsound += 1

    def _large_record(self) -> tuple[bytes | None, bytes | None]:
        """Return a record that was small while it was compressed."""
        size, agent = self._random.choice(_LARGE_BYTES), self._random.choice((self._pick_agent(), self._crowd))
        text, key = self._random.choice("x\0é") * size, agent.key.encoded()
        state = text if text[0] == "\0" else f'{{"a":"{text}"}}'  # or no JSON
        self._queue.clear()
        chance = self._random.choice((0, 1, 2, 3, 3, 3, 4, 5, 6, 7))
        if chance == 0:
            return self._random.choice((b"\xff", b"k")) * size, b"value"
        if chance == 1:
            return key, text.encode()
        if chance == 2:
            agent = self._new_agent()
            key = agent.key.encoded()
            self._send(agent, "session_created", {"limits": SHORT, "snapshot": snapshot("large", state)})
        elif chance == 3:
            agent, key = self._crowd, self._crowd.key.encoded()  # mostly too large for its row
            self._send(agent, "state_updated", {"state_json": f'{{"a":"{"é" * self._random.choice(_CONTENT_CHARS)}"}}'})
        elif chance == 4:
            self._send(agent, "session_errored", {"error": ErrorInfo("retryable", text, text)})
        elif chance == 5:
            self._send(agent, self._random.choice(WORK), **self._pick_field(_TEXT_FIELDS, (text,)))
        elif chance == 6:
            self._send(agent, "session_started", event_id=text)
        else:
            self._send(agent, "snapshot_created", {"snapshot": snapshot("large", state, context=text)})
        self._recent.pop()  # too costly to repeat
        return self._queue.popleft()

    # Headers

    def _with_headers(self, key: bytes | None, value: bytes | None) -> FuzzedRecord:
        chance = self._random.random()
        if chance < 0.05:
            return FuzzedRecord(key, value, BrokenMessage())
        headers: list[tuple[str, str | bytes | None]] = []
        if chance < 0.3:
            names = ("", "ce_id", "a\0b", "é", "n" * 300, "unreadable-headers")
            values = (None, b"", b"\xff", b"v" * 300)
            headers = [
                (self._random.choice(names), self._random.choice(values)) for _ in range(self._random.randint(1, 4))
            ]
        if chance > _FORGED_BELOW and value is not None and claims_authority(value):
            headers.append(KEYS.sign(key, value))
        return FuzzedRecord(key, value, Message("t", 0, 0, headers=headers or None))
