"""A token of one user: every page of the API answers as if other users' sessions were not there."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import requests
from aiohttp.web import Application

from sessionary.schemas.ids import new_task_id
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.lists import describe_open
from sessionary.stream_processors.api.pages import serve_pages
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.api.documented.served_state import ServedState
from tests.core.stream_processors.api.run_rig import RunRig
from tests.support.event_factory import EventFactory

OWN, OTHER, OF_TENANT = "of-u1", "of-u2", "token"
PUBLIC = {"/healthz", "/readyz", "/metrics", "/openapi.json"}
LISTS = {
    "/v1/sessions": "sessions",
    "/v1/runs": "runs",
    "/v1/waiting": "waiting",
    "/v1/open-requests": "open_requests",
}
BODY = {"reason": "look", "to": "shop", "for": "shop"}
QUERIES = {"/v1/sessions/{session_id}/at": "offset=0"}  # what a page cannot do without


def all_routes() -> list[tuple[str, str]]:
    """Return method and path of each page of the API."""
    app, pages = Application(), AsyncMock()
    serve_pages(SimpleNamespace(web_app=app), *[pages] * 5)
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    return sorted(route for route in found if route[0] != "HEAD")


class Served:
    """The API, and what it says of a path to a token."""

    def __init__(self, url: str, state: ServedState) -> None:
        self.url, self.state = url, state

    def ask(self, token: str | None, method: str, path: str, body: Any = None, place: int = 0) -> requests.Response:
        """Ask for a page; `place` picks the ids in its path: 0 is what is there."""
        path += f"?{QUERIES[path]}" if path in QUERIES else ""
        for name, values in self.state.values.items():
            path = path.replace(f"{{{name}}}", str(values[place if name in ("session_id", "task_id") else 0]))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return requests.request(method, self.url + path, headers=headers, json=body, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = ServedState()
    with state.serve(tmp_path_factory.mktemp("users")) as url:
        yield Served(url, state)


@pytest.mark.parametrize(("method", "path"), all_routes())
def test_a_page_shows_nothing_of_another_user(method: str, path: str, served: Served) -> None:
    """A new page fails here, unless it is unknown to another user's token, or has a case below."""
    if path in PUBLIC:
        assert served.ask(None, method, path).status_code in (200, 503)
    elif path.startswith(("/v1/partitions", "/v1/rules")):
        bodies: list[dict[str, Any]] = [{"reason": "look"}, {"reason": "look", "dry_run": True}]
        answers = [served.ask(token, method, path, body) for token in (OWN, OTHER) for body in bodies]
        assert [(answer.status_code, answer.json()["reason"]) for answer in answers] == [(403, "forbidden")] * 4
    elif path in LISTS:
        listed = {token: served.ask(token, method, path).json()[LISTS[path]] for token in (OWN, OTHER, OF_TENANT)}
        assert listed[OTHER] == []
        assert listed[OWN] == listed[OF_TENANT]
        assert (listed[OWN] == []) == (path == "/v1/waiting")
    elif path == "/v1/sessions/poll":
        asked = [{"session_id": each, "state": "Idle"} for each in served.state.values["session_id"][:2]]
        states = {
            token: [each["state"] for each in served.ask(token, method, path, {"sessions": asked}).json()["sessions"]]
            for token in (OWN, OTHER, OF_TENANT)
        }
        assert states == {OWN: ["Active", None], OTHER: [None, None], OF_TENANT: ["Active", "Archived"]}
    else:
        own, other = (served.ask(token, method, path, BODY if method == "POST" else None) for token in (OWN, OTHER))
        assert (own.status_code in (200, 409, 503), other.status_code) == (True, 404)  # no event is sent here
        assert other.json()["reason"].startswith("unknown_")
        unknown = served.ask(OTHER, method, path, BODY if method == "POST" else None, place=-1)
        assert (other.status_code, other.json()["reason"]) == (unknown.status_code, unknown.json()["reason"])


def test_an_archived_session_has_no_user_any_more(served: Served) -> None:
    answers = [served.ask(token, "GET", "/v1/sessions/{session_id}", place=1) for token in (OF_TENANT, OWN, OTHER)]
    assert [answer.status_code for answer in answers] == [410, 404, 404]


def test_a_list_of_another_user_is_empty(served: Served) -> None:
    listed = served.ask(OWN, "GET", "/v1/sessions?user_id=u2").json()["sessions"]
    assert listed == []
    assert len(served.ask(OWN, "GET", "/v1/sessions?user_id=u1").json()["sessions"]) == 1


def test_a_run_is_of_its_own_user() -> None:
    rig = RunRig()
    for run_id, user in (("mine", "u1"), ("hers", "u2")):
        sent = rig.rig.send(rig.agent, "run_started", {"run_id": run_id, "user_id": user}, mode="attached")
        assert sent == "applied"
        rig.send("run_running", run_id)
    shown = [[run["run_id"] for run in rig.ask_run(None, token)[1]["runs"]] for token in ("token", OWN)]
    assert shown == [["mine", "hers"], ["mine"]]
    shown = [[run["run_id"] for run in rig.ask("execution", token=token)[1]["runs"]] for token in ("token", OWN)]
    assert shown == [["mine", "hers"], ["mine"]]
    for part in ((), ("steps",), ("tool-calls",), ("artifacts",)):
        found = [rig.ask("runs", "hers", *part, token=token)[0] for token in ("token", OWN, OTHER)]
        assert found == [200, 404, 200], part
    assert json.dumps(rig.ask("execution", token=OTHER)[1]).count("u1") == 0


def test_requests_for_runs_of_another_user_are_not_listed() -> None:
    rig, callers = OracleRig(), [Caller.model_validate({"tenant": "acme", "user": user}) for user in (None, "u1", "u2")]
    agent = EventFactory()
    rig.start(agent)
    for user in ("u1", "u2"):
        sent = rig.send(agent, "run_queued", {"run_id": f"of-{user}", "user_id": user}, mode="detached")
        assert sent == "applied"
    row: Any = rig.fold.rows[agent.key.encoded()]
    listed = [[request["id"] for request in describe_open(row, rig.fold, caller)] for caller in callers]
    assert listed == [["of-u1", "of-u2"], ["of-u1"], ["of-u2"]]


def test_what_a_user_may_not_see_is_unknown_also_while_a_transaction_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown session is waited for: an answer at once would tell that there is one."""

    async def is_never_merged(self: RunRig, timeout_s: float) -> bool:
        return False

    monkeypatch.setattr(RunRig, "_is_merged", is_never_merged)
    rig = RunRig()
    task_id = new_task_id(rig.agent.key)
    assert rig.rig.send(rig.agent, "run_queued", {"run_id": task_id}, mode="detached") == "applied"
    for path in ("execution", "runs", "task"):
        for token, status in ((OF_TENANT, 200), (OWN, 200), (OTHER, 503)):
            found = rig.ask_task(task_id, token) if path == "task" else rig.ask(path, token=token)
            assert (path, token, found[0]) == (path, token, status)
    assert [rig.ask_run(task_id, token)[0] for token in (OWN, OTHER)] == [200, 503]
