"""Folds a log with the core that is found first, and prints what came of it as JSON.

    python fold_log.py LOG

LOG is a pickled list of records of one partition. The answer names the build of the core and the
types of the codec's functions, and has a digest of all that the transactions write, in order: the
records, and the rows as a store keeps them.
"""

import hashlib
import json
import pickle
import sys
from pathlib import Path

from sessionary.schemas.codec import framing
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core_build import core_build
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.fold_rig import FoldRig

_BATCH = 500


def main(path: str) -> None:
    """Fold and print."""
    rig, job = FoldRig(), processor_job(ProcessorSettings(partitions=1, instance="w1"))
    log = [
        LogRecord(rig.offset + n, rig.at + n // 4, key, value, headers)
        for n, (key, value, headers) in enumerate(pickle.loads(Path(path).read_bytes()))
    ]
    digest, records, rows, rejected = hashlib.sha256(), 0, 0, 0
    for start in range(0, len(log), _BATCH):
        batch = rig.fold.begin()
        for record in log[start : start + _BATCH]:
            assert batch.apply(record)
        outcome = batch.finish()
        rejected += outcome.counts.rejected
        transaction = job.transaction(0, outcome, 0)
        produced = (*transaction.records, *transaction.elsewhere)
        for each in (*produced, *sorted(transaction.rows.items())):
            digest.update(repr(tuple(each)).encode())
        records += len(produced)
        rows += len(transaction.rows)
        rig.fold.merge(batch)
    (writer,) = {type(write).__name__ for write in framing._WRITERS.values()}
    (reader,) = {type(read).__name__ for read in framing._compiled_readers_as_of(NEWEST_RULES.version).values()}
    codec = {"reader": reader, "writer": writer}
    counts = {"digest": digest.hexdigest(), "records": records, "rows": rows, "rejected": rejected}
    sys.stdout.write(json.dumps({"core": core_build(), **codec, **counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
