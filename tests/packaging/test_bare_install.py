"""What an agent installs: the wheel with its three dependencies, in an environment that has nothing
else.
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from generation.modules import make_texts
from tests.packaging.wheel_rig import run_clean
from tests.style.project import ROOT

# Runs in the bare environment: emits a session in memory, then prints imports and packages.
_AGENT = """
import json, sys
from importlib import metadata
from sessionary.producers.testing import memory_client

ours = sorted({name.split(".")[1] for name in sys.modules if name.startswith("sessionary.")})
client, memory = memory_client("acme", "billing", "agent-1")
with client.session(user_id="u1", state={"step": 0}) as session:
    session.activity("llm")
    session.update_state({"step": 1})
    memory.advance(900)
    state = memory.view_session(session).state
client.close()
print(json.dumps({
    "sent": [event.envelope.event_type for event in memory.events()],
    "ours": ours,
    "state": state,
    "installed": sorted(distribution.name.lower() for distribution in metadata.distributions()),
    "where": sys.modules["sessionary.producers"].__file__,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_clean(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("sessionary-*.whl")
    return built


@pytest.fixture(scope="module")
def said(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bare")
    run_clean(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run_clean(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    (folder / "agent.py").write_text(_AGENT)
    answer: dict[str, Any] = json.loads(run_clean(python, "-W", "error", "agent.py", cwd=folder))
    return answer


def test_the_wheel_holds_the_namespace_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sessionary"}
    assert "sessionary/__init__.py" not in names
    for part in ("schemas", "producers", "stream_processors", "sinks", "infra"):
        assert f"sessionary/{part}/py.typed" in names
    assert "sessionary/pytest_plugin.py" in names
    generated = "sessionary/schemas/codec/generated/"
    assert sum(name.startswith(generated) for name in names) == len(make_texts())
    assert "sessionary/schemas/avro/common/envelope.avsc" in names
    assert {
        "sessionary/sinks/clickhouse/tables/history.sql",
        "sessionary/sinks/clickhouse/views/v_sessions.sql",
        "sessionary/sinks/clickhouse/migrations/README.md",  # without a migration the folder must be there, too
    } <= set(names)
    assert any(name.startswith("sessionary/infra/demo/") and name.endswith(".gz") for name in names)
    assert {f"sessionary/infra/demo/examples/workflow/{name}.py" for name in ("services", "workflow")} <= set(names)
    assert "sessionary/infra/demo/examples/moving_session/services.py" in names


def test_the_image_has_all_files_of_which_the_wheel_is_built(wheel: Path, tmp_path: Path) -> None:
    source, built = tmp_path / "app", tmp_path / "built"
    for line in (ROOT / "infra/compose/Dockerfile").read_text().splitlines():
        match line.split():
            case ["COPY", *paths, "./"]:
                for path in paths:
                    source.mkdir(exist_ok=True)
                    shutil.copy(ROOT / path, source)
            case ["COPY", path, target] if (ROOT / path).is_file():
                (source / target).parent.mkdir(parents=True)
                shutil.copy(ROOT / path, source / target)
            case ["COPY", path, target]:
                shutil.copytree(ROOT / path, source / target, ignore=shutil.ignore_patterns("generated", "__pycache__"))
    run_clean(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, source, cwd=tmp_path)
    (rebuilt,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as of_checkout, zipfile.ZipFile(rebuilt) as of_image:
        assert sorted(of_image.namelist()) == sorted(of_checkout.namelist())


def test_an_agent_emits_with_the_core_install_alone(said: dict[str, Any]) -> None:
    assert said["sent"][0] == "session_created"
    assert {"session_activity", "state_updated"} <= set(said["sent"])
    assert said["state"] == "Timeout"


def test_the_client_imports_the_client_and_the_contract_only(said: dict[str, Any]) -> None:
    assert said["ours"] == ["producers", "schemas"]
    assert "site-packages" in said["where"]


def test_the_core_install_brings_no_role_along(said: dict[str, Any]) -> None:
    roles = {"faust-streaming", "aiokafka", "clickhouse-connect", "chdb", "typer", "rich", "rocksdict", "jgo", "pytest"}
    assert {"confluent-kafka", "fastavro", "pydantic"} <= set(said["installed"])
    assert roles & set(said["installed"]) == set()
