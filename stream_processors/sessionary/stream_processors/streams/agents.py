"""Loads a user's Faust agents into the worker, and checks the topics that they read.

A user's function gets the worker's Faust app and the table of sessions, and decorates its agents
with `app.agent`, as in any Faust program.
"""

import importlib
import time
from collections.abc import Callable, Collection

import faust
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from mode.utils.imports import cwd_in_path

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.streams.sessions_table import SessionsTable

_log = role_logger(__name__)
_VARIABLE = "SESSIONARY_FAUST_AGENTS"
_ANSWER_S = 5.0
_PAUSE_S = 1.0  # a broker may report a new topic a moment after it has accepted it
_ATTEMPTS = 6


def load_agents(settings: ProcessorSettings, app: faust.App, sessions: SessionsTable) -> frozenset[str]:
    """Call the function that the setting `faust_agents` names; return the topics of its agents.

    Returns no topic without this setting. Modules of the working directory are found. Blocks while
    the module is imported; the module's own errors are passed on.

    Raises `SettingsError` if there is no such function, or if this worker cannot run what it
    registers: no agent, a table, an agent on the events topic.
    """
    if settings.faust_agents is None:
        return frozenset()
    _find_function(settings.faust_agents)(app, sessions)
    topics = frozenset(topic for agent in app.agents.values() for topic in agent.get_topic_names())
    place = f"{_VARIABLE}={settings.faust_agents}"
    if not app.agents:
        raise SettingsError(f"{place} registers no agent: decorate at least one with `app.agent(topic)`")
    if app.tables:
        raise SettingsError(
            f"{place} makes the tables {', '.join(sorted(app.tables))}: this worker does not recover Faust's tables. "
            "Keep what agents compute in a topic, or run them in a Faust worker of their own"
        )
    if settings.topics.events in topics:
        raise SettingsError(
            f"{place} has an agent on {settings.topics.events}: its records go to the owners of its partitions only. "
            f"{settings.topics.audit} has what came of each"
        )
    return topics


def _find_function(name: str) -> Callable[[faust.App, SessionsTable], object]:
    module_name, _, function_name = name.partition(":")
    with cwd_in_path():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module was found, but not what it imports
            raise SettingsError(
                f"{_VARIABLE}={name}: there is no module {error.name}, neither installed nor in the working directory"
            ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SettingsError(f"{_VARIABLE}={name}: module {module_name} has no function {function_name}(app, sessions)")
    return function  # type: ignore[no-any-return]


def check_agent_topics(settings: ProcessorSettings, topics: Collection[str], is_stopped: Callable[[], bool]) -> None:
    """Check that each topic has as many partitions as the events topic.

    Only then is a session's record on the worker of the session. Blocks until a broker answers or
    `is_stopped` returns True. Raises `SettingsError` if a topic is missing, or has another number.
    """
    admin = AdminClient(settings.client_config())
    answers = 0
    while not is_stopped():
        try:
            known = admin.list_topics(timeout=_ANSWER_S).topics
        except KafkaException as error:
            _log.warning(
                "no broker knows the topics of the agents yet: %(error)s",
                **error_fields(error),
            )
            continue
        wrong = [
            f"topic {topic} of a Faust agent "
            + (f"has {len(known[topic].partitions)} partitions" if topic in known else "does not exist")
            for topic in sorted(topics)
            if topic not in known or len(known[topic].partitions) != settings.partitions
        ]
        if not wrong:
            return
        answers += 1
        if answers == _ATTEMPTS:
            raise SettingsError(
                f"{'; '.join(wrong)}. It needs {settings.partitions} partitions, as {settings.topics.events} has, so "
                "that a session and the records with its key are on the same worker"
            )
        time.sleep(_PAUSE_S)
