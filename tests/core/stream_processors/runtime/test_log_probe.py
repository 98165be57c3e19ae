"""When a position is in the log."""

import pytest

from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.log_probe import LogProbe


def test_a_position_must_be_within_the_log() -> None:
    LogProbe(5, 9).check_position(0, 5)
    LogProbe(5, 9).check_position(0, 9)
    for outside in (4, 10):
        with pytest.raises(Halted, match="log_gap"):
            LogProbe(5, 9).check_position(0, outside)
