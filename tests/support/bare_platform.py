"""A pytest plugin: the Python of a platform without POSIX's extras, as Windows and macOS lack them.

pytest --noconftest -p tests.support.bare_platform -p tests.core.producers.conftest …
"""

import os
import sys

MISSING_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
MISSING_NAMES = ("posix_fallocate", "register_at_fork")


def take_away() -> None:
    """Take away what the client must not need. Call it before the client is imported."""
    for name in MISSING_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in MISSING_NAMES:
        if hasattr(os, name):
            delattr(os, name)


take_away()

__all__ = ["MISSING_MODULES", "MISSING_NAMES", "take_away"]
