"""An identity provider's token endpoint: OAuth 2.0 client credentials, answered with unsigned JWTs.

A broker with Kafka's unsecured validator, which is made for tests, accepts them.
"""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs


class _Handler(BaseHTTPRequestHandler):
    server: "TokenEndpoint"

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        who = base64.b64decode(self.headers.get("Authorization", "Basic ").partition(" ")[2]).decode()
        name, _, secret = who.partition(":")
        allowed = secret == self.server.secret and form.get("grant_type") == ["client_credentials"]
        self.server.asked.append(name)
        claims = {"sub": name, "iat": time.time(), "exp": time.time() + self.server.life_s, "scope": form.get("scope")}
        token = ".".join((*(_encode_part(part) for part in ({"alg": "none"}, claims)), ""))
        body = json.dumps({"access_token": token, "token_type": "Bearer"} if allowed else {"error": "invalid_client"})
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def _encode_part(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


class TokenEndpoint(ThreadingHTTPServer):
    """Serves from construction to `close`. `asked` has the client of each request."""

    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, secret: str = "s3cret", life_s: float = 300.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secret, self.life_s = secret, life_s
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/token"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def options(self, client: str) -> dict[str, str]:
        """Return the settings of librdkafka by which `client` gets tokens here."""
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": self.secret,
            "sasl.oauthbearer.token.endpoint.url": self.url,
        }

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
