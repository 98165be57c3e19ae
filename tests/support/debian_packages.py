"""Programs that tests need from Debian packages: Prometheus, and a browser.

`python -m tests.support.debian_packages monitoring` installs what is missing, and so does
`browser`. The exit code is always 0: without a program, the tests that need it are skipped, and say
so.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from sessionary.schemas.errors import SessionaryError

_INSTALL_S: Final = 240.0


class NotInstalled(SessionaryError):
    """A program is missing, and apt-get cannot install it."""


class Programs(NamedTuple):
    """Programs by their names on the path, and the packages that have them."""

    names: tuple[str, ...]
    packages: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The programs that are not installed."""
        return [name for name in self.names if shutil.which(name) is None]


MONITORING: Final = Programs(
    ("prometheus", "promtool", "prometheus-alertmanager", "amtool"), ("prometheus", "prometheus-alertmanager")
)
BROWSER: Final = Programs(("chromium-headless-shell",), ("chromium-headless-shell",))


def install_programs(programs: Programs) -> None:
    """Install programs by apt-get. Blocks. Raises `NotInstalled`."""
    command = ["apt-get", "install", "-y", "--no-install-recommends", *programs.packages]
    by_hand = f"install them by hand: {' '.join(command)}"
    if shutil.which("apt-get") is None:
        raise NotInstalled(f"{', '.join(programs.missing)}: not found, and there is no apt-get; {by_hand}")
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    try:
        for step in (["apt-get", "update"], command):
            done = subprocess.run(
                [*prefix, *step], capture_output=True, text=True, timeout=_INSTALL_S, check=False, env=env
            )
            said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if missing := programs.missing:
        raise NotInstalled(f"apt-get did not install {', '.join(missing)} ({said}); {by_hand}")


def ensure_programs(programs: Programs, say: Callable[[str], object]) -> bool:
    """Install programs unless they are there; return whether they are now."""
    if missing := programs.missing:
        say(f"not installed: {', '.join(missing)}; installing the Debian packages by apt-get")
        try:
            install_programs(programs)
        except NotInstalled as error:
            say(str(error))
            return False
    return True


if __name__ == "__main__":
    ensure_programs(
        {"monitoring": MONITORING, "browser": BROWSER}[sys.argv[1]], lambda text: sys.stderr.write(f"{text}\n")
    )
