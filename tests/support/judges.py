"""The judge of a processor, as tests fold with it."""

from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import Stream

JUDGE = SESSION_JUDGE
STREAMS: tuple[Stream, ...] = ("audit", "rejected", "cleanup", "tasks", "migrations")
