"""Asks the control API once whether it takes the token, so that a wrong one is known at the start.

Without this an agent would hear of it from its first `resume`, which may be days later.
"""

import threading
import uuid

from sessionary.producers.errors import AuthenticationFailed, SessionaryError
from sessionary.producers.ports import Control, OnError

REFUSED_TOKEN = "control_authentication"
"""The reason by which a refused token is counted."""
_TIMEOUT_S = 8.0


def start_token_check(control: Control, on_error: OnError) -> threading.Thread:
    """Ask in a daemon thread, which ends after 10 s at most. Reports a refused token only."""

    def check_token() -> None:
        try:
            control.fetch_session(str(uuid.uuid4()), None, _TIMEOUT_S)
        except AuthenticationFailed as error:
            on_error(error)
        except SessionaryError:
            pass  # unknown, as it should be; or nothing answers, which the verb that waits will tell

    thread = threading.Thread(target=check_token, name="sessionary-token-check", daemon=True)
    thread.start()
    return thread
