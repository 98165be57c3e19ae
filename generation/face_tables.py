"""The natural differences between the client's faces for threads and for asyncio."""

from collections.abc import Mapping
from typing import Final, NamedTuple

KINDS: Final[Mapping[str, str]] = {
    "here": "{call}",  # no coroutine: it neither sends nor waits
    "send": "await hand_over(self.core, {arguments})",  # hands events over; never sent later if it is cancelled
    "end": "await end_anyway(self.core, {arguments})",  # ends the session, also if it is cancelled
    "wait": "await asyncio.to_thread({arguments})",  # waits for Kafka, for the processor or for a store
    "flow": "await {call}",  # sends and waits in turn
    "iterate": "iterate_off_loop({call})",  # waits in a thread for each item
}


CANCELLED: Final = """None of its verbs blocks the event loop.

    Every verb may be cancelled, for example by `asyncio.timeout`. What it had handed over stays
    sent, before all that is sent later; what it had not is never sent. Only verbs that end the
    session end it all the same. A cancelled `resume` or `recover` may still be granted: call it
    again to go on waiting."""


class Face(NamedTuple):
    """A module that is made of another one.

    Attributes:
        source: The module for threads.
        target: The one for asyncio.
        kinds: What the methods of its classes become; without an entry: `here`.
        texts: What is replaced in code and docstrings, in this order, as regular expressions.
        by_hand: Methods that are written by hand, in the base of a class; by the class's name.
        imports: What the target needs besides; unused imports go.
    """

    source: str
    target: str
    kinds: Mapping[str, str]
    texts: Mapping[str, str]
    by_hand: Mapping[str, frozenset[str]]
    imports: str


SESSION: Final = Face(
    "session/session.py",
    "session/async_session.py",
    {
        **dict.fromkeys(("emit", "activity", "access", "info", "progress", "usage", "decision", "snapshot"), "send"),
        **dict.fromkeys(("pause", "error", "enter_phase"), "send"),
        **dict.fromkeys(("complete", "close", "cancel", "force_close", "fail_start"), "end"),
        **dict.fromkeys(("sync", "read", "get", "list", "handoff", "execution", "artifacts", "verify"), "wait"),
        **dict.fromkeys(("rollback", "save_checkpoint", "load_checkpoint"), "wait"),
        **dict.fromkeys(("message", "add_result", "update_state", "start_task", "ask"), "flow"),
        **dict.fromkeys(("start", "resume", "recover", "move"), "flow"),
    },
    {
        r"^class Session:": "class Session(OpenedLater):",
        r"\b(Session(Lifecycle|Conversation|Agents|Migration|Records|Client)?)\b(?!`? underneath)": r"Async\1",
        r"agents\.agent import Agent": "agents.async_agent import AsyncAgent",
        r"\b(Agent|Step)\b(?=[:(, ])": r"Async\1",
        r"run_session_flow\(": "run_session_flow_async(",
        r"Blocks (until|for)": r"Waits \1",
        r"wait for the answer\. Blocks\.": "wait for the answer.",
        r" Called in phase": " Awaited in phase",
        r"in `with`": "in `async with`",
        r"the `with` block": "the `async with` block",
        r"^( +)with session\.(llm|turn|transaction|run|resume_run)": r"\1async with session.\2",
        r"^( +)with session\.decision": r"\1with await session.decision",
        r"^( +)(recommend\()": r"\1await \2",
        r"= (ask_model|session\.(ask|load_checkpoint|snapshot|start_task|agents\.get)|run\.step)\(": r"= await \1(",
        r"^( +)(session\.(activity|message|update_state|rollback|save_checkpoint))\(": r"\1await \2(",
        r"^( +)(current_session\(\)\.access)\(": r"\1await \2(",
        r"It is thread-safe, and a context manager\.": "It is an async context manager. " + CANCELLED,
    },
    {"Session": frozenset({"__init__", "__repr__", "__enter__", "__exit__"})},
    "import asyncio\nfrom sessionary.producers.session.async_opening import AsyncStep, OpenedLater, end_anyway, "
    "hand_over, run_session_flow_async\n",
)
AGENT: Final = Face(
    "agents/agent.py",
    "agents/async_agent.py",
    dict.fromkeys(("begin", "share", "finish", "handoff", "view"), "wait"),
    {
        r"\b(Session|Agent)\b(?!View)": r"Async\1",
        r"; thread-safe\.": ".",
        r"Its verbs wait for": "Its verbs wait in a thread for",
        r"\n`Async.*\n\"\"\"": '"""',
    },
    {},
    "import asyncio\n",
)
CLIENT: Final = Face(
    "client.py",
    "async_client.py",
    {
        **dict.fromkeys(("create", "attach", "claim"), "flow"),
        **dict.fromkeys(("conversation", "check_task_status", "get_task_results"), "wait"),
        **dict.fromkeys(("get_intermediate_results", "find_task", "cancel_task"), "wait"),
        **dict.fromkeys(("flush", "close"), "wait"),
        **dict.fromkeys(("watch_task", "list_tasks"), "iterate"),
    },
    {
        r"\bReplay\b": "AsyncReplay",
        r"Callable\[\[AsyncReplay\], object\]": "Callable[[AsyncReplay], Awaitable[object]]",
        r"The unchanged agent, a function": "The unchanged agent, a coroutine function",
        r"session, for use in `with`: the agent's code runs": "session for `async with`: the agent's code runs",
        r"^( +)(agent\(session\))$": r"\1await \2",
        r"^ *from sessionary\.producers\.(follower|session\.(async_)?session) .*\n": "",
        r"(?<=import CONCURRENCY), OnMigrated\b": "",
        r"^class SessionClient:": "class SessionClient(AsyncClientBlock):",
        r"SessionId \| Session \| AsyncSession": "SessionId | Session | Async_Session",
        r"Continue the session of an id of your own, or create and start it if there is none\.": (
            "Return a session that `await`, or `async with`, opens or creates."
        ),
        r"\b(Session|SessionClient|SessionFollower|OnMigrated)\b": r"Async\1",
        r"AsyncSession \| Async_Session": "Session | AsyncSession",
        r"\bStep\b(?= \|)": "AsyncStep",
        r"\b((create|start|open|attach)_core|follow_session|take_migrations)\(": r"\1_async(",
        r"\bIterator\[": "AsyncIterator[",
        r" Called in phase": " Awaited in phase",
        r"Create and start a session\. Use it in `with`, which ends it\.": "Return a session that `async with` "
        "creates, starts and ends. Not a coroutine.",
        r"^( +)with client": r"\1async with client",
        r"^( +)(session\.activity)\(": r"\1await \2(",
        r"^( +)for view in client": r"\1async for view in client",
        r"a context\n    manager that closes it\.": "an async\n    context manager that closes it.",
        r"Then `function\(session\)` is called, on a thread of\n +the pool": "Then the event loop that runs now\n"
        "        awaits `function(session)`",
        r"Takes the `AsyncSession`\.": "A coroutine function; takes the `AsyncSession`.",
    },
    {"SessionClient": frozenset({"__enter__", "__exit__"})},
    "import asyncio\nfrom sessionary.producers.async_client_parts import AsyncClientBlock, AsyncOnMigrated, "
    "attach_core_async, create_core_async, follow_session_async, iterate_off_loop, open_core_async, "
    "start_core_async, take_migrations_async\nfrom sessionary.producers.async_follower import AsyncSessionFollower\n"
    "from sessionary.producers.session.async_opening import AsyncStep\n"
    "from sessionary.producers.session.async_session import AsyncSession\n"
    "from sessionary.producers.session.session import Session\n"
    "from collections.abc import AsyncIterator, Awaitable\n",
)
FACES: Final = (SESSION, AGENT, CLIENT)
