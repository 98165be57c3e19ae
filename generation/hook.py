"""Makes the readers and writers when the package is built or installed, also in place."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerationHook(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling is in the build's environment only
    """Hatch calls it before it collects the files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files into the tree, where the build finds them."""
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "schemas")]
        from generation.modules import write_files

        write_files(root)
