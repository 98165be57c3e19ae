"""A role's tracer: whether there is one, and that the SDK's own variables configure it."""

import os
import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import db_attributes, gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import error_attributes

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.role_traces import role_tracer

_ROLE = """
from sessionary.schemas.telemetry.role_traces import role_tracer
for _ in range(2):
    tracer = role_tracer("sink history", "s1")
with tracer.start_as_current_span("store events"):
    pass
"""


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_there_is_no_tracer_unless_the_variables_ask_for_traces(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    if "OTEL_SDK_DISABLED" in variables:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert role_tracer("processor") is None


def test_an_exporter_that_is_not_installed_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "no_such_exporter")
    with pytest.raises(SettingsError, match="no_such_exporter"):
        role_tracer("processor")


@pytest.mark.parametrize(("named", "expected"), [({}, "sessionary-sink-history"), ({"OTEL_SERVICE_NAME": "s"}, "s")])
def test_the_sdk_s_variables_configure_the_role(named: dict[str, str], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ROLE],
        env={**os.environ, **named, "OTEL_TRACES_EXPORTER": "console"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.count('"name": "store events"') == 1
    assert f'"service.name": "{expected}"' in done.stdout
    assert '"service.instance.id": "s1"' in done.stdout
    assert done.stderr == ""


def test_names_that_are_not_ours_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (db_attributes, error_attributes, gen_ai_attributes, messaging_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    operations = {role_traces.SCOPE, role_traces.SEND, role_traces.PROCESS, role_traces.STORE}
    names = {
        value for name, value in vars(role_traces).items() if name.isupper() and isinstance(value, str)
    } - operations
    assert {name for name in names - known if not name.startswith("sessionary.")} == set()
    assert len(names & known) >= 10
