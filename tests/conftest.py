"""Fixtures for all tests: topics and a database of the test's own on shared servers.

    kafka          topics below a fresh prefix on the shared broker (KafkaSettings)
    clickhouse     an empty database on the shared endpoint (ClickHouseSettings)
    tables         a database there with all tables and views, which are empty (ClickHouseSettings)
    broker         a broker of the test's own, to stop and kill (LocalBroker)
    own_clickhouse an endpoint of the test's own, to stop and kill (LocalClickHouse)
    processes      starts child processes and ends them (Processes)
    pipeline       topics and a processor that all tests of a file share (PipelineRig)

Logs are in `build/logs`; if a test fails, the ends of its logs are printed.
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from generation.modules import find_stale_files
from native.tree import find_stale_modules
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import API_TOKENS, PipelineRig, started_pipeline
from tests.style.project import ROOT
from tests.support.groups import Groups
from tests.support.interpreted import Interpreted
from tests.support.logs import log_folder, start_run
from tests.support.migrated_tables import lend_tables, take_tables_back
from tests.support.pipelines import drop_database, new_clickhouse, new_pipeline, remove_pipeline
from tests.support.processes import Processes, log_tail
from tests.support.stack import Stack

pytest_plugins = ("tests.support.levels",)
pytest.register_assert_rewrite("tests.core.oracle_rig")

_STACK = pytest.StashKey[Stack]()
_LOGS = pytest.StashKey[list[Path]]()
_PROCESSES = pytest.StashKey[Processes]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--groups", action="store_true", help="print a line per group of tests instead of a dot per test")


@pytest.hookimpl(trylast=True)  # after the terminal reporter is registered
def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job inherits an ignored SIGINT, and so would the processes of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_STACK] = stack = Stack()
    if hasattr(config, "workerinput"):
        _leave_out_interpreted(config)
        return  # the controlling process has started the servers and exported their addresses
    if outdated := find_stale_files(ROOT):
        names = ", ".join(outdated[:3])
        pytest.exit(f"{len(outdated)} readers and writers are not those of the schemas ({names}, …): make codec", 4)
    if stale := find_stale_modules(ROOT):
        names = ", ".join(map(str, stale[:3]))
        pytest.exit(f"{len(stale)} compiled modules are older than their sources ({names}, …): make native", 4)
    _leave_out_interpreted(config)
    # A client without a folder of its own spools there, not in the home of who runs the tests.
    os.environ["XDG_STATE_HOME"] = str(start_run() / "state")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("groups") and reporter is not None:
        config.pluginmanager.register(Groups(reporter))
    if config.getoption("numprocesses", None) and not config.getoption("collectonly"):
        stack.start_all()


def _leave_out_interpreted(config: pytest.Config) -> None:
    # Imported after the checks: what is missing or stale would fail here, and not say why.
    from sessionary.stream_processors.core_build import core_build

    config.pluginmanager.register(Interpreted(core_build()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage collection walk over the collected tests: thousands, which all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _STACK in config.stash:
        config.stash[_STACK].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for node in item.listchain():  # of the test, and of its file
            for log in node.stash.get(_LOGS, []):
                report.sections.append((f"end of {log.name}", log_tail(log)))
            if _PROCESSES in node.stash:
                report.sections += [(f"end of {name}", text) for name, text in node.stash[_PROCESSES].tails()]
    return report


def _show_on_failure(request: pytest.FixtureRequest, log: Path) -> None:
    request.node.stash.setdefault(_LOGS, []).append(log)


def _own_log(request: pytest.FixtureRequest, name: str) -> Path:
    log = log_folder() / f"{request.node.name}.{name}.log".replace("/", "_")
    _show_on_failure(request, log)
    return log


@pytest.fixture(scope="module")
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """The shared broker's address."""
    return request.config.stash[_STACK].bootstrap_servers()


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaSettings]:
    settings = new_pipeline(request.config.stash[_STACK].bootstrap_servers())
    _show_on_failure(request, log_folder() / "broker.log")
    yield settings
    remove_pipeline(settings)


@pytest.fixture
def clickhouse(request: pytest.FixtureRequest) -> Iterator[ClickHouseSettings]:
    settings = new_clickhouse(request.config.stash[_STACK].clickhouse_url())
    _show_on_failure(request, log_folder() / "clickhouse.log")
    yield settings
    drop_database(settings)


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> Iterator[ClickHouseSettings]:
    url = request.config.stash[_STACK].clickhouse_url()
    _show_on_failure(request, log_folder() / "clickhouse.log")
    yield lend_tables(url)
    take_tables_back(url)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
    own = LocalBroker(tmp_path / "kafka", None, _own_log(request, "broker"))
    own.start()
    try:
        own.wait_ready()
        yield own
    finally:
        own.stop()


@pytest.fixture
def own_clickhouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalClickHouse]:
    own = LocalClickHouse(tmp_path / "clickhouse", None, _own_log(request, "clickhouse"))
    own.start()
    try:
        own.wait_ready()
        yield own
    finally:
        own.stop()


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[Processes]:
    request.node.stash[_PROCESSES] = started = Processes(request.node.name)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def pipeline(request: pytest.FixtureRequest) -> Iterator[PipelineRig]:
    """A processor takes seconds to start. Tests that share it have sessions of their own.

    Its operator's token is `OPERATOR_TOKEN`, and its tenants are `TENANT` and `OTHER`.
    """
    kafka = new_pipeline(request.config.stash[_STACK].bootstrap_servers())
    request.node.stash[_PROCESSES] = started = Processes(request.node.name)
    _show_on_failure(request, log_folder() / "broker.log")
    try:
        yield started_pipeline(kafka, started, api_tokens=API_TOKENS)
    finally:
        started.stop()
        remove_pipeline(kafka)
