"""What a follower yields, whatever the streams beneath it do."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sessionary.producers import AuthenticationFailed, SessionFollower, SessionLost, SettingsError, Unavailable
from tests.core.producers.scripted_follows import ARCHIVED, SESSION_ID, ScriptedFollows, state_at
from tests.support.waiting import wait_until

LOST = Unavailable("the stream is over", 0.1)


def follower_of(
    *streams: Any, after: tuple[int, int] | None = None, first_s: float = 20.0, timeout_s: float | None = 0.0
) -> tuple[SessionFollower, ScriptedFollows]:
    follows = ScriptedFollows(*streams)
    return SessionFollower(follows, SESSION_ID, lambda: after, first_s, timeout_s), follows


def versions(follower: SessionFollower) -> Sequence[int]:
    return [view.version for view in follower]


def test_states_are_yielded_in_order_until_the_session_is_archived() -> None:
    follower, follows = follower_of([state_at(5, 1), state_at(6, 2), state_at(9, 2, state="Paused"), ARCHIVED])
    with follower:
        assert [(view.version, view.state) for view in follower] == [(1, "Active"), (2, "Active"), (2, "Paused")]
        assert (follower.is_archived, follower.position) == (True, (0, 9))
        assert list(follower) == []
    assert follows.opened[0].is_closed


def test_an_iteration_ends_after_its_time_and_a_later_one_goes_on() -> None:
    follower, follows = follower_of([state_at(5, 1)], [])
    assert versions(follower) == [1]
    assert not follower.is_archived
    follows.opened[0]._steps.append(state_at(6, 2))
    assert versions(follower) == [2]
    assert follower.wait_next(0.01) is None
    follower.close()


def test_a_lost_stream_is_opened_again_after_the_last_position() -> None:
    follower, follows = follower_of(
        [state_at(5, 1), state_at(6, 2), LOST],
        LOST,
        [state_at(6, 2), state_at(8, 3), LOST],
        [state_at(9, 3, rejected=1), state_at(12, 4), ARCHIVED],
        after=(0, 4),
    )
    follower._timeout_s = None
    assert versions(follower) == [1, 2, 3, 4]  # what was reported before is not reported again
    assert follows.asked == [(0, 4), (0, 6), (0, 6), (0, 8)]
    assert all(stream.is_closed for stream in follows.opened)


def test_no_version_epoch_or_place_goes_backwards() -> None:
    follower, _ = follower_of(
        [state_at(5, 3, epoch=2), LOST],
        [state_at(6, 2, epoch=2), LOST],  # by a worker that is behind
        [state_at(6, 4, epoch=1), LOST],
        [state_at(4, 3, epoch=2, state="Paused"), LOST],
        [state_at(7, 3, epoch=3), ARCHIVED],
    )
    follower._timeout_s = None
    assert [(view.version, view.epoch) for view in follower] == [(3, 2), (3, 3)]


def test_pauses_between_attempts_grow_and_begin_again_after_a_state() -> None:
    follower, follows = follower_of(*[LOST] * 4, [state_at(5, 1), LOST], *[LOST] * 2, [ARCHIVED])
    follower._timeout_s = None
    assert versions(follower) == [1]
    pauses = [later - earlier for earlier, later in zip(follows.asked_s, follows.asked_s[1:], strict=False)]
    assert len(pauses) == 7
    assert pauses[3] > pauses[0]
    assert pauses[3] >= 0.4  # at least half of 0.8 s
    assert pauses[4] < pauses[3]


def test_a_session_that_is_archived_while_the_stream_is_lost_ends_the_iteration() -> None:
    follower, _ = follower_of([state_at(5, 1), LOST], [ARCHIVED])
    follower._timeout_s = None
    assert versions(follower) == [1]
    assert follower.is_archived


def test_one_that_was_archived_before_is_lost() -> None:
    follower, _ = follower_of([ARCHIVED])
    with pytest.raises(SessionLost, match="was archived"):
        next(follower)
    assert list(follower) == []


@pytest.mark.parametrize("error", [SessionLost("unknown"), AuthenticationFailed("wrong"), SettingsError("no URL")])
@pytest.mark.parametrize("begun", [True, False])
def test_a_final_answer_is_raised_once(error: Exception, begun: bool) -> None:
    follower, _ = follower_of(*[[state_at(5, 1), LOST]] * begun, error)
    follower._timeout_s = None
    if begun:
        assert next(follower).version == 1
    with pytest.raises(type(error)):
        next(follower)
    assert list(follower) == []


def test_without_a_first_state_in_time_the_last_error_is_raised() -> None:
    follower, follows = follower_of(Unavailable("no worker", 0.1), first_s=0.3, timeout_s=None)
    with pytest.raises(Unavailable, match="no worker"):
        next(follower)
    assert len(follows.asked) > 1
    silent, _ = follower_of([], first_s=0.05)
    with pytest.raises(Unavailable, match="no state"):
        next(silent)


def test_an_iteration_with_a_time_ends_although_no_worker_answers() -> None:
    follower, _ = follower_of([state_at(5, 1), LOST], Unavailable("no worker", 0.1), timeout_s=0.2)
    assert versions(follower) == [1]
    follower.close()


def test_another_thread_may_close_a_follower_that_waits() -> None:
    for streams in ([[state_at(5, 1)]], [[state_at(5, 1), LOST], LOST]):
        follower, follows = follower_of(*streams, timeout_s=None)
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.extend(versions(follower)), daemon=True)  # noqa: B023
        waiting.start()
        wait_until(lambda: found or len(follows.asked) > len(streams) - 1, 20, "the first state")  # noqa: B023
        follower.close()
        waiting.join(60)
        assert not waiting.is_alive()
        assert found == [1]
        assert all(stream.is_closed for stream in follows.opened)


def test_a_follower_that_is_closed_while_its_stream_opens_leaves_none_open() -> None:
    follower, follows = follower_of([state_at(5, 1)])
    follows.on_open = follower.close
    assert versions(follower) == []
    assert [stream.is_closed for stream in follows.opened] == [True]
