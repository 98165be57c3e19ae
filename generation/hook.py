"""Makes the readers and writers when the package is built or installed, also in place.

With `NATIVE_WHEEL=1` in the environment it compiles the core too: the wheel is then one of the
platform, and of the interpreter that builds it. Without, no compiler is needed, and the wheel is
pure.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerationHook(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling is in the build's environment only
    """Hatch calls it before it collects the files."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside what its table in pyproject.toml says."""
        return list(self.config["native-dependencies"]) if _is_native_asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files into the tree, where the build finds them."""
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "schemas")]
        from generation.modules import write_files

        write_files(root)
        if _is_native_asked() and version != "editable":  # a checkout has `make native`
            from native.build import compile_for_wheel

            build_data["force_include"].update(compile_for_wheel(root))
            build_data["infer_tag"], build_data["pure_python"] = True, False


def _is_native_asked() -> bool:
    return os.environ.get("NATIVE_WHEEL") == "1"
