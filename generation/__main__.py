"""Make the readers and writers again: python -m generation."""

import sys

from generation.modules import ROOT, write_files


def main() -> int:
    """Write what changed."""
    changed = write_files(ROOT)
    if changed:
        sys.stderr.write(f"made {changed} modules of readers and writers\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
