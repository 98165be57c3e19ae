"""The configuration of both programs on Quix Streams: exactly once.

Runs in the environment of benchmarks/harness/peers.py.
"""

import gc

from quixstreams import Application  # type: ignore[import-not-found]  # see benchmarks/harness/peers.py

COMMIT_INTERVAL_S = 1.0  # the fastest of 0.1, 1 and 5 s in the keyed count


def make_application(bootstrap_servers: str, group: str, folder: str) -> Application:
    """Return an application that keeps its state below `folder`."""
    return Application(
        broker_address=bootstrap_servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT_INTERVAL_S,
        state_dir=folder,
        loglevel="WARNING",
        producer_extra_config={"linger.ms": 5, "queue.buffering.max.messages": 1_000_000},
    )


def tune_collector() -> None:
    """Configure the garbage collector as our processor does."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
