"""The machines of a processor, as tests fold with them."""

from sessionary.stream_processors.core.model import Stream
from sessionary.stream_processors.families import all_machines

MACHINES = all_machines()
STREAMS: tuple[Stream, ...] = ("audit", "rejected", "cleanup", "tasks", "migrations")
