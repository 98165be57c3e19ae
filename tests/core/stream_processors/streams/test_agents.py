"""Loading a user's agents: what is refused, and the check of their topics, without a broker."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.streams import agents
from sessionary.stream_processors.streams.agents import check_agent_topics, load_agents

MODULE = "agents_of_a_user"
AGENT = """
def register(app, sessions):
    @app.agent(app.topic("orders"))
    async def count_orders(stream):
        async for order in stream:
            pass
"""


@pytest.fixture(autouse=True)
def forget_module() -> Iterator[None]:
    yield
    sys.modules.pop(MODULE, None)


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, place: str | None) -> frozenset[str]:
    (folder / f"{MODULE}.py").write_text(source)
    monkeypatch.chdir(folder)
    settings = ProcessorSettings(faust_agents=place)
    sessions: Any = object()
    return load_agents(settings, make_faust_app(settings, str(folder)), sessions)


def test_a_function_of_the_working_directory_registers_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = list(sys.path)
    assert load(tmp_path, monkeypatch, AGENT, f"{MODULE}:register") == {"orders"}
    assert sys.path == path


def test_without_the_setting_nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(tmp_path, monkeypatch, AGENT, None) == frozenset()
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("source", "place", "fault"),
    [
        (AGENT, "gone.agents:register", "there is no module gone, neither installed nor in the working directory"),
        (AGENT, f"{MODULE}:start", "has no function start"),
        (f"{AGENT}start = 7", f"{MODULE}:start", "has no function start"),
        ("def register(app, sessions): pass", f"{MODULE}:register", "registers no agent"),
        (f"{AGENT}    app.Table('totals', default=int)", f"{MODULE}:register", "makes the tables totals"),
        (
            AGENT.replace('"orders"', '"sessionary.events"'),
            f"{MODULE}:register",
            "sessionary.audit has what came of each",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, place: str, fault: str
) -> None:
    with pytest.raises(SettingsError, match=f"^SESSIONARY_FAUST_AGENTS={place}.*{fault}"):
        load(tmp_path, monkeypatch, source, place)


def test_an_error_of_the_module_itself_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        load(tmp_path, monkeypatch, "import not_installed", f"{MODULE}:register")


class FakeAdmin:
    """Answers in turn: an error of the broker, or the number of each topic's partitions."""

    answers: list[dict[str, int] | None] = []

    def __init__(self, config: object) -> None:
        """Any configuration will do."""

    def list_topics(self, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        topics = {name: SimpleNamespace(partitions=[None] * number) for name, number in answer.items()}
        return SimpleNamespace(topics=topics)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    monkeypatch.setattr(agents, "AdminClient", FakeAdmin)
    monkeypatch.setattr(agents, "_PAUSE_S", 0.0)
    return FakeAdmin


def test_a_topic_with_another_number_of_partitions_is_named_with_both_numbers(admin: type[FakeAdmin]) -> None:
    admin.answers = [{"orders": 4, "invoices": 6, "other": 1}]
    with pytest.raises(
        SettingsError, match=r"^topic gone of a Faust agent does not exist; topic invoices .* has 6 pa"
    ) as caught:
        check_agent_topics(ProcessorSettings(partitions=4), {"orders", "invoices", "gone"}, lambda: False)
    assert "It needs 4 partitions, as sessionary.events has" in str(caught.value)
    assert "orders" not in str(caught.value)


def test_a_broker_that_is_away_or_does_not_know_a_new_topic_yet_is_asked_again(admin: type[FakeAdmin]) -> None:
    admin.answers = [None, {}, {"orders": 4}]
    check_agent_topics(ProcessorSettings(partitions=4), {"orders"}, lambda: False)
    assert admin.answers == [{"orders": 4}]


def test_a_worker_that_is_stopped_asks_no_longer(admin: type[FakeAdmin]) -> None:
    admin.answers = [None]
    asked = iter([False, False, True])
    check_agent_topics(ProcessorSettings(), {"orders"}, lambda: next(asked))
    assert list(asked) == []
