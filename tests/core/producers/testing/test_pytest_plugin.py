"""The fixtures that the package ships for pytest, in a pytest of their own."""

import subprocess
import sys
from importlib import import_module

import pytest

from tests.style.project import pyproject

pytest_plugins = ["pytester"]
PLUGIN = "sessionary.pytest_plugin"

_AGENTS_TESTS = """
import asyncio

from sessionary.producers import Limits


def test_an_agent_times_out(sessionary_client, sessionary_memory):
    session = sessionary_client.session(user_id="u", limits=Limits(idle_ms=60_000))
    sessionary_memory.advance(60)
    assert sessionary_memory.view_session(session).state == "Timeout"


def test_each_test_has_a_memory_of_its_own(sessionary_memory):
    assert sessionary_memory.events() == []


def test_an_agent_with_asyncio(sessionary_async_client, sessionary_memory):
    async def run_agent():
        async with sessionary_async_client.session(user_id="u") as session:
            await session.activity("llm")

    asyncio.run(run_agent())
    assert [judged.outcome for judged in sessionary_memory.verdicts()] == ["applied"] * 6


def test_both_clients_share_the_memory(sessionary_client, sessionary_async_client, sessionary_memory):
    assert sessionary_async_client.sync_client.core is sessionary_client.core
"""


@pytest.fixture
def agents_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with an agent's tests; its pytest loads no plugin that it is not asked to."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_agent=_AGENTS_TESTS)
    return pytester


def test_an_agents_tests_use_the_fixtures(agents_folder: pytest.Pytester) -> None:
    done = agents_folder.runpytest_subprocess("-p", PLUGIN, "-W", "error")
    done.assert_outcomes(passed=4)


def test_the_fixtures_are_explained_on_the_command_line(agents_folder: pytest.Pytester) -> None:
    done = agents_folder.runpytest_subprocess("-p", PLUGIN, "--fixtures")
    done.stdout.fnmatch_lines_random(["sessionary_memory*", "sessionary_client*", "sessionary_async_client*"])


def test_the_package_offers_the_plugin_to_every_pytest() -> None:
    assert pyproject()["project"]["entry-points"]["pytest11"] == {"sessionary": PLUGIN}
    assert import_module(PLUGIN).__doc__


def test_loading_the_plugin_loads_neither_the_client_nor_what_it_needs() -> None:
    """Each pytest in an environment with the package loads it, whatever it tests."""
    code = f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert sorted(done.stdout.split()) == ["sessionary", PLUGIN]
