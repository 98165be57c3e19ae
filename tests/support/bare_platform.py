"""A pytest plugin: the Python of a platform without POSIX's extras, as Windows and macOS lack them.

pytest --noconftest -p tests.support.bare_platform -p tests.core.producers.conftest …
"""

import os
import sys

# What the client must not need. It is imported after this module.
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None  # type: ignore[assignment]
for name in ("posix_fallocate", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)
