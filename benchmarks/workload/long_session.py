"""One session with a long past: each event is an update of a content of 4 kB.

The records are folded once, by the judge, so that the audit trail has the hashes that it left.
"""

import json
from random import Random
from typing import Final, NamedTuple

from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, Position
from sessionary.stream_processors.core.model import LogRecord
from tests.core.past_rig import PastRig
from tests.support.event_factory import EventFactory

STATE_BYTES: Final = 4_096
EVERY: Final = 300  # of the partition's records, one is the session's
STEP_MS: Final = 500
_WORDS: Final = ("plan", "draft", "source", "table", "price", "order", "answer", "check", "result", "of", "the", "and")
_ITEMS: Final = 8
_BATCH: Final = 200


class LongSession(NamedTuple):
    """A session's records, its audit trail, and the position after the last record."""

    session: SessionKey
    records: list[LogRecord]
    trail: list[AuditRecord]
    end: Position


def grown_state(random: Random, number: int) -> str:
    """Return the content after update `number` as JSON: `STATE_BYTES` of an agent's notes."""
    size = STATE_BYTES // _ITEMS
    notes = [" ".join(random.choices(_WORDS, k=size // 4))[: size - 24] for _ in range(_ITEMS)]
    return json.dumps({"notes": notes, "step": number}, separators=(",", ":"), sort_keys=True)


def make_session(name: str, events: int, seed: int, began_ms: int, first_offset: int = 0) -> LongSession:
    """Return a session of `events` updates of its content.

    `began_ms`: the time of offset 0. The records of others are between the session's: each of its
    updates is `EVERY` offsets, and `STEP_MS`, after the one before.
    """
    rig, agent, random = PastRig(), EventFactory(name), Random(seed)
    rig.at, rig.offset = began_ms + first_offset * STEP_MS // EVERY, first_offset
    rig.start(agent)
    for first in range(0, events, _BATCH):
        records = []
        for number in range(first, min(first + _BATCH, events)):
            version, text = number + 1, grown_state(random, number)
            value = agent.event_bytes("state_updated", base_version=version, new_version=version + 1, state_json=text)
            rig.offset += EVERY
            rig.at = began_ms + rig.offset * STEP_MS // EVERY
            records.append(LogRecord(rig.offset, rig.at, agent.key.encoded(), value))
        rig.append_batch(*records)
    return LongSession(agent.key, rig.log, rig.trail, rig.fold.position)
