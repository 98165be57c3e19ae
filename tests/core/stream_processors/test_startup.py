"""What a process does before its worker joins the group: the libraries' repeated messages."""

import logging
import time

import pytest

from sessionary.stream_processors.startup import RepeatFilter


def log_record(name: str, line: int) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", line, "no broker", None, None)


def test_a_library_s_line_is_logged_once_in_a_while_and_ours_always(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    repeats = RepeatFilter()
    assert [repeats.filter(log_record("aiokafka.client", line)) for line in (7, 7, 8)] == [True, False, True]
    assert [repeats.filter(log_record("sessionary.worker", 7)) for _ in range(2)] == [True, True]
    now_s[0] += 30.0
    assert repeats.filter(log_record("aiokafka.client", 7))
