"""The control API does what its OpenAPI document says, for requests that schemathesis makes.

No answer is a server error but a documented 503; each has a documented status and content type, and
conforms to its schema; what is malformed is rejected; an unknown method is 405.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import (
    FuzzingPhaseConfig,
    GenerationConfig,
    PhasesConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from sessionary.stream_processors.api.openapi import DOCUMENT, PEOPLE_PATHS
from tests.core.stream_processors.api.documented.served_state import ServedState

load_all_checks()
# Tokens have a test of their own: here all requests have the right one. Parameters of a query that
# are not documented are left alone, so that a client may say to an older worker what only newer
# ones know.
_GENERATION = GenerationConfig(allow_extra_parameters=False, deterministic=True, database="none")
_PROJECT = ProjectConfig(generation=_GENERATION, phases=PhasesConfig(fuzzing=FuzzingPhaseConfig(enabled=False)))
SCHEMA = schemathesis.openapi.from_dict(
    {**DOCUMENT, "security": []}, config=SchemathesisConfig(projects=ProjectsConfig(default=_PROJECT))
)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
# A 503 is an answer like others where the document has it: see `status_code_conformance`.
CHECKED = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
EXAMPLES, EXAMPLES_OF_LONG = 12, 200
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Almost any value of these names another tenant, another partition, or nothing.
SELECTIVE = ("tenant", "after", "cursor", "user_id", "seen")


class Target:
    """A server, and how its operations are asked."""

    def __init__(self, url: str, state: ServedState) -> None:
        self.url, self.values = url, state.values
        self._session = requests.Session()

    def known_paths(self, path: str) -> list[dict[str, Any]]:
        """Return values for the names in a path, of what is there and what is not."""
        names = [name for name in self.values if f"{{{name}}}" in path]
        return [dict(zip(names, each, strict=True)) for each in product(*(self.values[name] for name in names))]

    def cases(self, operation: Any, mode: GenerationMode) -> st.SearchStrategy[Any]:
        """Return requests to an operation: of any kind, and such that name what is there."""
        named = st.sampled_from(self.known_paths(operation.path)).flatmap(
            lambda values: operation.as_strategy(mode, path_parameters=values or None)
        )
        if mode == GenerationMode.POSITIVE:
            named = named.map(self._select_more)
        return st.one_of(named, operation.as_strategy(mode))

    def _select_more(self, case: Any) -> Any:
        """Leave out what selects, which is optional, and name a known session."""
        bodies = [case.query, case.body] if isinstance(case.body, dict) else [case.query]
        for body in bodies:
            for name in SELECTIVE:
                body.pop(name, None)
        if isinstance(case.body, dict):
            for n, session in enumerate(case.body.get("sessions", ())):
                session["session_id"] = self.values["session_id"][n % len(self.values["session_id"])]
                session.pop("after", None)
        return case

    def check(self, case: Any) -> None:
        """Ask, and fail unless the answer is as the document says."""
        headers = {"Authorization": f"Bearer {token_for(case.path)}"}
        response = case.call(base_url=self.url, session=self._session, headers=headers, timeout=60)
        case.validate_response(response, checks=[CHECKS.get_one(name) for name in CHECKED])
        if response.status_code >= 400 and case.path not in ("/healthz", "/readyz"):
            assert response.headers["content-type"] == ["application/problem+json"], response

    def ask(self, method: str, path: str, token: str | None) -> requests.Response:
        """Ask for a page with the first known values in its path."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._session.request(method, self.url + path.format(**self.known_paths(path)[0]), headers=headers)


def token_for(path: str) -> str:
    is_operators = path.startswith(("/v1/partitions", "/v1/rules")) or path in PEOPLE_PATHS
    return "op" if is_operators else "token"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    state = ServedState()
    with state.serve(tmp_path_factory.mktemp("api")) as url:
        yield Target(url, state)


def check_operation(target: Target, operation: Any, mode: GenerationMode, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=target.cases(operation, mode))
    def check(case: Any) -> None:
        target.check(case)

    check()


def modes_of(operation: Any) -> list[GenerationMode]:
    """Return what can be asked of an operation: without any input, nothing is malformed."""
    has_input = operation.body or operation.query or operation.path_parameters
    return list(GenerationMode) if has_input else [GenerationMode.POSITIVE]


ASKED = [
    pytest.param(operation, mode, id=f"{label}-{mode.value}")
    for label, operation in OPERATIONS.items()
    for mode in modes_of(operation)
]


@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_answers_are_as_the_document_says(target: Target, operation: Any, mode: GenerationMode) -> None:
    check_operation(target, operation, mode, EXAMPLES)


@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_many_answers_are_as_the_document_says(target: Target, operation: Any, mode: GenerationMode) -> None:
    check_operation(target, operation, mode, EXAMPLES_OF_LONG)


@SCHEMA.parametrize()
def test_answers_at_the_bounds_of_each_parameter_are_as_the_document_says(case: Any, target: Target) -> None:
    target.check(case)


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_a_method_that_a_page_does_not_have_is_405_and_named(target: Target, path: str) -> None:
    known = {method.upper() for method in DOCUMENT["paths"][path]}
    for method in METHODS:
        answer = target.ask(method, path, token_for(path))
        assert (answer.status_code == 405) == (method not in known), (method, answer.status_code, answer.text)
        if answer.status_code == 405:
            assert {*answer.headers["Allow"].split(",")} - {"HEAD"} == known
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["reason"] == "method_not_allowed"


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_a_page_needs_a_token_of_the_right_role_unless_the_document_says_otherwise(target: Target, path: str) -> None:
    for method, operation in DOCUMENT["paths"][path].items():
        is_open = operation.get("security") == []
        wrong_role = "token" if token_for(path) == "op" else "op"
        statuses = [target.ask(method.upper(), path, token).status_code for token in (None, "unknown", wrong_role)]
        # What is open is listed for readers and for operators of no tenant.
        other = 200 if path in ("/v1/waiting", "/v1/open-requests") else 403
        assert statuses == ([200] * 3 if is_open else [401, 401, other])
