"""A prefork server on a real broker: its master makes the client, its workers use it."""

import json
import sys
from collections import defaultdict
from pathlib import Path

from sessionary.producers import ProducerSettings
from sessionary.schemas.codec import Event
from sessionary.schemas.events import Heartbeat
from sessionary.schemas.settings import KafkaSettings
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_events
from tests.support.waiting import wait_until

# As gunicorn with --preload: the module makes the client, workers fork, then they get requests.
# The second generation replaces the first, whose last worker was killed at work.
SERVER = """
import json, os, signal, sys
from pathlib import Path
from sessionary.producers import SessionClient

folder = Path(sys.argv[1])
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a")
mine = client.session(user_id="master")

def serve_requests(name):
    for number in range(3):
        with client.session(user_id=name) as session:
            for step in range(20):
                session.activity("llm", f"{number}.{step}")
    left = client.flush(120)
    (folder / name).write_text(json.dumps([client.producer_id, client.counters.sent, left, client.counters.failed]))

def start_worker(name, killed=False):
    pid = os.fork()
    if pid == 0:
        serve_requests(name)
        if killed:
            client.session(user_id=name).activity("llm")
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    return pid

first = [start_worker("one"), start_worker("two"), start_worker("killed", killed=True)]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in first]
mine.activity("llm")
codes.append(os.waitstatus_to_exitcode(os.waitpid(start_worker("three"), 0)[1]))
mine.complete()
left = client.flush(120)
(folder / "master").write_text(json.dumps([client.producer_id, client.counters.sent, left, client.counters.failed]))
(folder / "codes").write_text(json.dumps(codes))
"""


def test_workers_of_a_prefork_server_deliver_with_producer_ids_of_their_own(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    settings = ProducerSettings(**{**kafka.model_dump(), "spool_dir": spool})
    server = processes.run([sys.executable, "-c", SERVER, str(tmp_path)], env=environment(settings), name="server")
    assert server.wait(300)
    assert json.loads((tmp_path / "codes").read_text()) == [0, 0, -9, 0]
    names = ("master", "one", "two", "killed", "three")
    reported = {name: json.loads((tmp_path / name).read_text()) for name in names}
    assert len({producer for producer, *_ in reported.values()}) == len(names)
    assert {name: (left, failed) for name, (_, _, left, failed) in reported.items()} == dict.fromkeys(names, (0, 0))
    workers_sent = 3 * (4 + 20 + 1)
    assert [reported[name][1] for name in names] == [6, workers_sent, workers_sent, workers_sent, workers_sent]

    def numbers_by_sequence() -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for event in read_events(kafka):
            if isinstance(event, Event) and not isinstance(event.payload, Heartbeat):
                found[event.envelope.producer_id, event.envelope.session_id].append(event.envelope.producer_seq)
        return found

    # The killed worker's last session comes from its spool, which the next worker takes over.
    wait_until(lambda: sum(map(len, numbers_by_sequence().values())) >= 6 + 4 * workers_sent + 5, 60, "all events")
    found = numbers_by_sequence()
    assert all(list(dict.fromkeys(numbers)) == list(range(1, max(numbers) + 1)) for numbers in found.values())
    assert {producer for producer, _ in found} == {producer for producer, *_ in reported.values()}
    assert [path for path in settings.spool_folder.iterdir() if path.suffix != ".lock"] == []
