"""A processor without metrics: it counts no transaction, and gives no row a label.

It works as any other does, so the difference is what metrics cost.
"""

from typing import Any
from unittest.mock import patch

from sessionary.stream_processors.core.committed import RowTally
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.settings import ProcessorSettings


def do_nothing(*_: Any) -> None:
    """Take the place of a method that counts."""


if __name__ == "__main__":
    with (
        patch.object(Metrics, "count_outcome", do_nothing),
        patch.object(RowTally, "label_of", do_nothing),
        patch.object(RowTally, "replace_rows", do_nothing),
        patch.object(RowTally, "count_waiting", do_nothing),
    ):
        run_processor(ProcessorSettings.from_env())
