"""A worker that logs which topics aiokafka fetches: `python -m tests.support.watched_worker`."""

import logging
from typing import Any

from aiokafka.consumer.fetcher import Fetcher

from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
_send_fetch = Fetcher._proc_fetch_request
_seen: set[str] = set()


async def _log_fetch(fetcher: Any, assignment: Any, node_id: int, request: Any) -> Any:
    for topic, _ in request.topics:
        if topic not in _seen:
            _seen.add(topic)
            _log.info("aiokafka fetches %s", topic)
    return await _send_fetch(fetcher, assignment, node_id, request)


if __name__ == "__main__":
    Fetcher._proc_fetch_request = _log_fetch
    run_processor(ProcessorSettings.from_env())
