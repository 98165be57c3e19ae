"""Pages as a real browser shows them."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from PIL import Image

from tests.support.debian_packages import BROWSER

_CHROMIUM: Final = shutil.which(BROWSER.names[0])
needs_chromium = pytest.mark.skipif(_CHROMIUM is None, reason="Chromium is missing: make browser installs it")
_SHOW_S: Final = 300


def take_screenshot(page: Path, picture: Path, width: int, height: int) -> Image.Image:
    """Show a file in Chromium, and return what is seen; `picture` is the PNG file for it."""
    assert _CHROMIUM is not None
    command = [_CHROMIUM, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
    command += [f"--window-size={width},{height}", f"--screenshot={picture}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SHOW_S, check=False)
    assert picture.exists(), done.stderr
    return Image.open(picture).convert("RGB")


def count_pixels(picture: Image.Image, colour: str) -> int:
    """Return how many pixels have exactly a colour, such as `#2f6fde`."""
    wanted = tuple(bytes.fromhex(colour.removeprefix("#")))
    return sum(count for count, found in picture.getcolors(1 << 24) or () if found == wanted)
