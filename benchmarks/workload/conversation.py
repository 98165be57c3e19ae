"""A conversation whose context grows, with a snapshot after each turn: a question and an answer.

A snapshot has the messages of the context by their hashes; their texts are events of their own. Or
it has the whole context as text too. The texts are of random words, the common ones more often, so
that they compress like prose.
"""

from random import Random
from typing import Final, NamedTuple

from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import encode_event
from sessionary.schemas.ids import SessionKey
from sessionary.stream_processors.core.model import LogRecord

_LETTERS: Final = "etaoinshrdlucmfw"
_WORDS, _COMMON = 2_000, 150
_MESSAGES: Final = {"user": 40, "assistant": 160}  # of a turn, with their words


class Conversation(NamedTuple):
    """The events of a conversation. `plain_bytes`: of the whole context after each turn."""

    memory: InMemoryTransport
    records: list[LogRecord]
    plain_bytes: int


def hold_conversation(turns: int, seed: int, *, with_text: bool) -> Conversation:
    """Return a conversation of so many turns.

    `with_text`: each snapshot has the context as text.
    """
    random = Random(seed)
    words = ["".join(random.choices(_LETTERS, k=random.randint(2, 9))) for _ in range(_WORDS)]
    client, memory = memory_client()
    context, plain_bytes = "", 0
    with client, client.session(user_id="ada", state={"topic": "papers"}) as session:
        for _ in range(turns):
            for role, length in _MESSAGES.items():
                places = (min(int(random.expovariate(1 / _COMMON)), _WORDS - 1) for _ in range(length))
                text = " ".join(words[place] for place in places)
                session.message(role, text)
                context += f"{role}: {text}\n"
            plain_bytes += len(context)
            session.snapshot(context=context if with_text else None)
    records = []
    for one in memory.verdicts():
        envelope = one.event.envelope
        key = SessionKey(envelope.tenant_id, envelope.session_id).encoded()
        records.append(LogRecord(one.offset, one.at_ms, key, encode_event(one.event)))
    return Conversation(memory, records, plain_bytes)
