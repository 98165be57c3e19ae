"""Where the examples are that a demo runs."""

from pathlib import Path


def example_folder(demo: Path, name: str) -> Path:
    """Return the folder of the example `name`: beside a demo's module, or in the repository.

    `demo` is the path of a module in the demo's package.
    """
    packed = demo.parent / "example"
    return packed if packed.is_dir() else demo.parents[4] / "examples" / name
