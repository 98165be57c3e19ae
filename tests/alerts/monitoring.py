"""A real Prometheus and a real Alertmanager, and a server that takes Alertmanager's messages."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from sessionary.infra.alerts.render import render_rules
from sessionary.infra.alerts.thresholds import Thresholds
from sessionary.infra.local.ports import LOOPBACK, free_ports
from tests.support.prometheus import STOP_S, PrometheusClient, start_server


class Message(NamedTuple):
    """One alert as Alertmanager tells it to the webhook."""

    at_s: float
    resolved: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    fired_s: float


class _Handler(BaseHTTPRequestHandler):
    server: "_WebhookServer"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        at_s = time.time()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in body["alerts"]:
            fired_s = datetime.fromisoformat(alert["startsAt"]).timestamp()
            message = Message(at_s, alert["status"] == "resolved", alert["labels"], alert["annotations"], fired_s)
            self.server.messages.append(message)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _WebhookServer(ThreadingHTTPServer):
    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self) -> None:
        self.messages: list[Message] = []
        super().__init__((LOOPBACK, 0), _Handler)


class Monitoring:
    """Prometheus, Alertmanager and the webhook. A context manager starts and stops them."""

    def __init__(self, folder: Path, logs: Path, targets_file: Path, settings: Thresholds) -> None:
        """`folder`: for data and configuration. `logs`: for the logs of both processes."""
        self._folder, self._logs, self._targets_file = folder, logs, targets_file
        self._settings = settings
        self._webhook = _WebhookServer()
        self.prometheus_port, self.alertmanager_port = free_ports(2)
        self.prometheus = PrometheusClient(self.prometheus_port)
        self._closing = ExitStack()

    def __enter__(self) -> "Monitoring":
        self._closing.callback(self._webhook.server_close)
        thread = threading.Thread(target=self._webhook.serve_forever, args=(0.1,), name="webhook", daemon=True)
        thread.start()
        self._closing.callback(self._webhook.shutdown)
        try:
            self._start_alertmanager()
            self._start_prometheus()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()

    @property
    def messages(self) -> list[Message]:
        """What the webhook got so far."""
        return list(self._webhook.messages)

    def _start_alertmanager(self) -> None:
        url = f"http://{LOOPBACK}:{self._webhook.server_address[1]}/"
        config = {
            "route": {
                "receiver": "webhook",
                "group_by": ["..."],
                "group_wait": "0s",
                "group_interval": "1s",
                "repeat_interval": "1h",
            },
            "receivers": [{"name": "webhook", "webhook_configs": [{"url": url, "send_resolved": True}]}],
        }
        path = self._write_json("alertmanager.yml", config)
        _check_file("amtool", "check-config", str(path))
        self._start_program(
            "prometheus-alertmanager",
            {"config.file": path, "storage.path": self._folder / "alertmanager", "cluster.listen-address": ""},
            self.alertmanager_port,
        )

    def _start_prometheus(self) -> None:
        rules = self._folder / "rules.yml"
        rules.write_text(render_rules(self._settings), "utf-8")
        config = {
            "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"{LOOPBACK}:{self.alertmanager_port}"]}]}]
            },
            "scrape_configs": [{"job_name": "sessionary", "file_sd_configs": [{"files": [str(self._targets_file)]}]}],
        }
        path = self._write_json("prometheus.yml", config)
        _check_file("promtool", "check", "config", str(path))
        self._start_program(
            "prometheus",
            {"config.file": path, "storage.tsdb.path": self._folder / "prometheus"},
            self.prometheus_port,
        )

    def _write_json(self, name: str, config: Mapping[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(json.dumps(config, indent=1))  # JSON is YAML too
        return path

    def _start_program(self, name: str, options: Mapping[str, object], port: int) -> None:
        child = start_server(name, options, self._logs / f"{name}.log", port)
        self._closing.callback(child.stop, STOP_S)


def _check_file(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
