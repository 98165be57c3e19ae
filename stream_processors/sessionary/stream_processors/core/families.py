"""The families of rows that a processor keeps: a new family of children is one line here."""

from typing import Final

from sessionary.stream_processors.core.children.agent import AGENTS
from sessionary.stream_processors.core.children.artifact import ARTIFACTS
from sessionary.stream_processors.core.children.call import CALLS
from sessionary.stream_processors.core.children.checkpoint import CHECKPOINTS
from sessionary.stream_processors.core.children.message import MESSAGES
from sessionary.stream_processors.core.children.step import STEPS
from sessionary.stream_processors.core.session.judge import SessionJudge

CHILDREN: Final = (STEPS, CALLS, ARTIFACTS, MESSAGES, AGENTS, CHECKPOINTS)
SESSION_JUDGE: Final = SessionJudge(CHILDREN)
