"""Look-ups in a registry that do not wait, on a scripted registry and a scripted clock."""

import threading
from collections.abc import Iterator

import pytest

from sessionary.schemas.codec import registry
from sessionary.schemas.codec.registry import LOOK_UPS_MAX, UNKNOWN_S, BackgroundLookups
from sessionary.schemas.errors import Unavailable
from tests.support.waiting import wait_until


class ScriptedRegistry:
    """Answers when `may_answer` is set; knows `schemas`; raises `trouble` if there is one."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.trouble: Exception | None = None
        self.may_answer = threading.Event()
        self.asked: list[int] = []

    def get_schema(self, schema_id: int) -> str:
        self.asked.append(schema_id)
        assert self.may_answer.wait(30)
        if self.trouble is not None:
            raise self.trouble
        return self.schemas[schema_id]

    def register_schema(self, full_name: str, schema: str) -> int:
        self.schemas[len(self.schemas) + 1] = schema
        return len(self.schemas)


class Rig:
    def __init__(self) -> None:
        self.registry, self.now_s = ScriptedRegistry(), 100.0
        self.lookups = BackgroundLookups(self.registry, lambda: self.now_s)

    def ask(self, schema_id: int) -> str | None:
        """Return the schema; None: unknown. Repeats the call while the look-up is under way."""
        found: list[str | None] = []

        def is_answered() -> bool:
            try:
                found.append(self.lookups.get_schema(schema_id))
            except KeyError:
                found.append(None)
            except Unavailable as error:
                if "being looked up" not in error.what:
                    raise
            return bool(found)

        wait_until(is_answered, 30, f"an answer about schema {schema_id}")
        return found[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.registry.may_answer.set()


def test_a_caller_never_waits_and_one_look_up_serves_all(rig: Rig) -> None:
    rig.registry.schemas[7] = '"string"'
    for _ in range(3):  # the registry does not answer yet
        with pytest.raises(Unavailable, match="schema 7 is being looked up"):
            rig.lookups.get_schema(7)
    rig.registry.may_answer.set()
    assert [rig.ask(7) for _ in range(3)] == ['"string"'] * 3
    rig.now_s += 1e9  # a schema never changes under its id
    assert rig.lookups.get_schema(7) == '"string"'
    assert rig.registry.asked == [7]


def test_an_unknown_id_is_asked_for_again_after_a_second(rig: Rig) -> None:
    rig.registry.may_answer.set()
    assert rig.ask(7) is None
    rig.registry.schemas[7] = '"int"'
    rig.now_s += UNKNOWN_S - 0.01
    assert rig.ask(7) is None
    assert rig.registry.asked == [7]
    rig.now_s += 0.02
    assert rig.ask(7) == '"int"'
    assert rig.registry.asked == [7, 7]


def test_a_failed_look_up_is_repeated_when_its_pause_is_over(rig: Rig) -> None:
    rig.registry.may_answer.set()
    rig.registry.trouble = Unavailable("the registry is down", 5.0)
    with pytest.raises(Unavailable, match="the registry is down") as caught:
        rig.ask(7)
    assert caught.value.retry_after_s == pytest.approx(5.0)
    rig.registry.trouble, rig.registry.schemas[7] = None, '"int"'
    rig.now_s += 4.0
    with pytest.raises(Unavailable) as caught:
        rig.ask(7)
    assert caught.value.retry_after_s == pytest.approx(1.0)
    rig.now_s += 1.5
    assert rig.ask(7) == '"int"'


def test_a_flood_of_ids_starts_a_bounded_number_of_look_ups(rig: Rig) -> None:
    for schema_id in range(3 * LOOK_UPS_MAX):
        with pytest.raises(Unavailable):
            rig.lookups.get_schema(schema_id)
    rig.registry.may_answer.set()
    assert rig.ask(LOOK_UPS_MAX - 1) is None
    wait_until(lambda: len(rig.registry.asked) == LOOK_UPS_MAX, 30, "the look-ups that were started")
    assert rig.ask(3 * LOOK_UPS_MAX) is None
    assert len(rig.registry.asked) == LOOK_UPS_MAX + 1


def test_the_oldest_answer_is_forgotten_first(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ANSWERS_MAX", 3)
    rig.registry.may_answer.set()
    rig.registry.schemas = {schema_id: f"{schema_id}" for schema_id in range(5)}
    assert [rig.ask(schema_id) for schema_id in (0, 1, 2, 3, 1, 0)] == ["0", "1", "2", "3", "1", "0"]
    assert rig.registry.asked == [0, 1, 2, 3, 0]


def test_registering_is_the_registrys_own(rig: Rig) -> None:
    assert rig.lookups.register_schema("a.B", '"int"') == 1
    assert rig.registry.schemas == {1: '"int"'}
