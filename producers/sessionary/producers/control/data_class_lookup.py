"""Finds the data classes of sessions that other clients created."""

import time

from sessionary.producers.errors import SessionaryError, SessionLost, SettingsError
from sessionary.producers.ports import Control, OnError
from sessionary.schemas.types import DataClass

_TIMEOUT_S = 2.0
_PAUSE_S = 10.0  # until a control API that failed is asked again: clean-ups must not wait for it


class DataClassLookup:
    """Asks the control API. One thread calls it."""

    def __init__(self, control: Control, on_error: OnError) -> None:
        self._control = control
        self._on_error = on_error
        self._failed_s: float | None = None

    def find_classes(self, session_id: str) -> tuple[DataClass, ...]:
        """Return a session's data classes; none if they cannot be found. Blocks for up to 2 s.

        For 10 s after a failure the control API is not asked.
        """
        if self._failed_s is not None and time.monotonic() - self._failed_s < _PAUSE_S:
            return ()
        try:
            view = self._control.fetch_session(session_id, None, _TIMEOUT_S)
        except (SettingsError, SessionLost):
            return ()  # there is no control API, or the session is archived
        except SessionaryError as error:
            self._failed_s = time.monotonic()
            self._on_error(error)
            return ()
        return tuple(view.data_classes)
