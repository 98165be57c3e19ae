"""What is made for most events has slots and no dictionary, and no class below it."""

from typing import Any

import pytest

from sessionary.stream_processors.core.children.message import TurnTaken
from sessionary.stream_processors.core.clock import Clock
from sessionary.stream_processors.core.family import Judged, SessionArrival
from sessionary.stream_processors.core.model import Decision
from sessionary.stream_processors.core.run.judge import RunJudgement
from sessionary.stream_processors.core.run.transitions import RunMoment
from sessionary.stream_processors.core.sequencing import LogMoment, SequenceCheck
from sessionary.stream_processors.core.session.facts import (
    HeartbeatSeen,
    PhaseMoved,
    SequenceMoved,
    WorkDone,
)

HOT: tuple[type[Any], ...] = (
    *(SessionArrival, Clock, Decision, LogMoment, SequenceCheck),
    *(HeartbeatSeen, PhaseMoved, SequenceMoved, TurnTaken, WorkDone),
    *(Judged, RunJudgement, RunMoment),
)


@pytest.mark.parametrize("made", HOT)
def test_an_object_has_no_dictionary_in_either_build(made: type[Any]) -> None:
    assert made.__dictoffset__ == 0
    assert not issubclass(made, tuple)


@pytest.mark.interpreted  # a compiled class tells neither
@pytest.mark.parametrize("made", HOT)
def test_a_class_is_final_and_has_slots(made: type[Any]) -> None:
    assert vars(made)["__slots__"] != ()
    assert made.__final__
