"""Answers of the control API: JSON documents, and errors as problem documents (RFC 9457)."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp.web import Request, Response

from sessionary.stream_processors.api.openapi_parts import PROBLEM_TYPE_PREFIX

_RETRY_AFTER_S = "1"


class Problem(Exception):
    """An answer other than 200: a problem document of type `urn:sessionary:problems/<reason>`."""

    def __init__(self, status: int, reason: str, title: str, detail: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(detail)
        self.status, self.reason, self.title, self.detail, self.headers = status, reason, title, detail, headers

    def to_json(self) -> bytes:
        """Return the problem document."""
        document = {
            "type": PROBLEM_TYPE_PREFIX + self.reason,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        return json.dumps(document).encode()

    def to_response(self) -> Response:
        """Return the problem document as a response."""
        return Response(
            status=self.status,
            body=self.to_json(),
            content_type="application/problem+json",
            headers=dict(self.headers),
        )


def not_ready(detail: str) -> Problem:
    """Return a 503 with Retry-After: the same request may succeed in a moment."""
    return Problem(503, "not_ready", "Not ready", detail, {"Retry-After": _RETRY_AFTER_S})


def parse_number(name: str, text: str) -> int:
    """Return the whole number in `text`. Raises `Problem` 400, which names the number `name`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        detail = f"{name}={text!r}: use a whole number of 0 or more, below 10^18"
        raise Problem(400, "invalid_value", f"Bad {name}", detail)
    return int(text)


async def parse_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the request's body; empty without a body. Raises `Problem` 400."""
    content = await request.read()
    try:
        found = json.loads(content) if content else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Problem(400, "invalid_value", "Bad body", "the body is no JSON object")
    return found


def json_response(document: object, status: int = 200) -> Response:
    """Return a JSON document as a response."""
    return Response(status=status, body=json.dumps(document).encode(), content_type="application/json")
