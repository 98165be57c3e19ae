"""Two small HTTP services for the workflow: a tracker of issues, and a messenger.

python -m examples.workflow.services FOLDER [--ignore-keys] [--hold messages]

    GET  /issues/{key}            the issue
    GET  /articles?query=…        the articles of the knowledge base
    POST /messages                send a message; the header Idempotency-Key names the request
    GET  /messages?key=…          the message that was sent for a key, or 404

Sent messages stay in FOLDER, also if the services are killed. With --ignore-keys every request
sends a message again, and no key can be asked for: many real services behave like this. With --hold
the first answer of that kind is held back, which leaves time to kill the waiting process.
"""

import argparse
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = ("issues", "articles", "messages")
_HELD_S = 60.0


class SentMessages:
    """The messages that were sent, one JSON line each, in order. Thread-safe."""

    def __init__(self, folder: Path, *, ignores_keys: bool) -> None:
        self._path = folder / "messages.ndjson"
        self._ignores_keys = ignores_keys
        self._lock = threading.Lock()
        self._path.touch()

    def all(self) -> list[dict[str, Any]]:
        """Return all messages."""
        return [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the message that was sent for a key; None without one, or if keys are ignored."""
        found = (message for message in self.all() if message["key"] == key)
        return None if self._ignores_keys else next(found, None)

    def send(self, key: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message, unless one was sent for this key; return the sent message."""
        with self._lock:
            if (sent := self.find(key)) is not None:
                return sent
            sent = {**message, "key": key, "message_id": len(self.all()) + 1}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(sent) + "\n")
                file.flush()
                os.fsync(file.fileno())
            return sent


class Services(ThreadingHTTPServer):
    """Both services on one port of this machine; `url` is their address.

    `holds`: the first answer of this kind is delayed by a minute. `say` gets a line for the delay,
    and one for each request to send a message.
    """

    daemon_threads = True

    def __init__(
        self,
        folder: Path,
        *,
        ignores_keys: bool = False,
        holds: str | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent = SentMessages(folder, ignores_keys=ignores_keys)
        self.requests: list[str] = []  # keys of the requests to send a message
        self._holds = holds
        self._say = say
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """The address of both services."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def note_request(self, key: str) -> None:
        """Record a request to send a message."""
        self.requests.append(key)
        self._say(f"asked to send {key}")

    def hold_answer(self, path: str) -> None:
        """Wait if this answer is the one to hold back."""
        if self._holds is not None and path.startswith(f"/{self._holds}"):
            self._holds = None
            self._say(f"holding the answer of {path.partition('?')[0]}")
            self._closed.wait(_HELD_S)

    def server_close(self) -> None:
        """Release held answers, and close the port."""
        self._closed.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.startswith("/issues/"):
            key = parts.path.removeprefix("/issues/")
            self._answer(200, {"key": key, "title": "Invoices are sent twice", "team": "billing"})
        elif parts.path == "/articles":
            self._answer(200, {"articles": [f"How we handle: {asked.get('query', '')}"]})
        elif parts.path == "/messages" and (sent := self._services.sent.find(asked.get("key", ""))) is not None:
            self._answer(200, sent)
        else:
            self._answer(404, {"error": f"{self.path} is not known"})

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Idempotency-Key", "")
        self._services.note_request(key)
        self._answer(200, self._services.sent.send(key, message))

    @property
    def _services(self) -> Services:
        assert isinstance(self.server, Services)
        return self.server

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the workflow prints enough."""

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self._services.hold_answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Answer requests until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Two small HTTP services for the workflow.")
    parser.add_argument("folder", type=Path, help="folder for the messages")
    parser.add_argument("--ignore-keys", action="store_true", help="send a message for every request")
    parser.add_argument("--hold", choices=KINDS, help="the kind whose first answer is held back")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(text, flush=True)

    with Services(arguments.folder, ignores_keys=arguments.ignore_keys, holds=arguments.hold, say=say) as services:
        print(services.url, flush=True)
        try:
            services.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
