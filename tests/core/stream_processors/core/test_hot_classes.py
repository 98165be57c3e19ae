"""What is made for most events has slots and no dictionary, and no class below it."""

from typing import Any

import pytest

from sessionary.stream_processors.core.call.facts import CallMoved
from sessionary.stream_processors.core.call.judge import CallJudgement
from sessionary.stream_processors.core.clock import Clock
from sessionary.stream_processors.core.machine import Arrival, Decision, ForRow
from sessionary.stream_processors.core.message.facts import MessageTaken
from sessionary.stream_processors.core.run.facts import RunHeard, RunMoved
from sessionary.stream_processors.core.run.judge import RunJudgement
from sessionary.stream_processors.core.run.transitions import RunMoment
from sessionary.stream_processors.core.sequencing import LogMoment, SequenceCheck
from sessionary.stream_processors.core.session.facts import (
    HeartbeatSeen,
    PhaseMoved,
    SequenceMoved,
    TurnTaken,
    WorkDone,
)
from sessionary.stream_processors.core.step.facts import StepMoved

HOT: tuple[type[Any], ...] = (
    *(Arrival, Clock, Decision, ForRow, LogMoment, SequenceCheck),
    *(HeartbeatSeen, PhaseMoved, SequenceMoved, TurnTaken, WorkDone, MessageTaken),
    *(CallJudgement, CallMoved, RunHeard, RunJudgement, RunMoment, RunMoved, StepMoved),
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
