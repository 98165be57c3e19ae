"""Runs beside an installed wheel: says which core it has, and folds a log with it.

    python core_of_wheel.py native|python [LOG]

It prints JSON and imports nothing of the checkout. Without LOG, the packages that an agent installs
suffice; with it, also `prometheus_client`. LOG is a pickled list of records of one partition: key,
value. The answer then has a digest of all that the fold writes. The exit code is 1 if the core is
not the build that is named.
"""

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

_BATCH = 500
_START_MS = 1_700_000_000_000


def describe_client() -> dict[str, Any]:
    """Return what the client loads beside the standard library, and what it writes events with."""
    from sessionary.producers.testing import memory_client

    loaded = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    client, memory = memory_client("acme", "billing", "agent-1")
    with client, client.session(user_id="u1", state={"step": 0}) as session:
        sent = [session.activity("llm") for _ in range(5)]
        events = len(memory.events())
    from sessionary.schemas.codec import framing

    writers = {type(write).__name__ for write in framing._WRITERS.values()}
    return {"loaded": sorted(loaded), "writers": sorted(writers), "sent": len(set(sent)), "events": events}


def fold_log(path: Path) -> dict[str, Any]:
    """Fold a log; return a digest of all records that its transactions write, and of its rows."""
    from sessionary.stream_processors.core.model import LogRecord
    from sessionary.stream_processors.runtime.job import processor_job
    from sessionary.stream_processors.settings import ProcessorSettings

    job = processor_job(ProcessorSettings(partitions=1, instance="w1"))
    fold = job.new_state(0)
    fold.finish_loading()
    pairs: list[tuple[bytes, bytes]] = pickle.loads(path.read_bytes())
    log = [LogRecord(n, _START_MS + n // 4, key, value, ()) for n, (key, value) in enumerate(pairs)]
    digest, written = hashlib.sha256(), 0
    for start in range(0, len(log), _BATCH):
        batch = fold.begin()
        if not all(batch.apply(record) for record in log[start : start + _BATCH]):
            raise RuntimeError(f"a batch was full before {_BATCH} records")
        transaction = job.transaction(0, batch.finish(), 0)
        produced = [*transaction.records, *transaction.elsewhere]
        written += len(produced)
        for each in (*produced, *sorted(transaction.rows.items())):
            digest.update(repr(tuple(each)).encode())
        fold.merge(batch)
    return {"digest": digest.hexdigest(), "records": written, "rows": len(fold.rows)}


def main(build: str, *log: str) -> int:
    """Print what is found; return the exit code."""
    found = describe_client()  # first, so that nothing else is loaded
    from sessionary.schemas import ids
    from sessionary.stream_processors.core_build import core_build

    found |= {"core": core_build(), "ids": Path(f"{ids.__file__}").suffix, "python": sys.version.split()[0]}
    if log:
        found |= fold_log(Path(log[0]))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["core"] == build else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
