"""`python -m benchmarks.report`: redraw docs/performance.md and its plots from the results."""

import sys

from benchmarks.report.page import PAGE, PLOTS, plot_files, with_results
from benchmarks.report.result_files import read_results


def main() -> int:
    """Write the page, and the plots of all results that there are. Returns the exit code."""
    results = read_results()
    try:
        PAGE.write_text(with_results(PAGE.read_text("utf-8"), results), "utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{PAGE}: {error}\n")
        return 1
    PLOTS.mkdir(exist_ok=True)
    for name, drawn in plot_files(results).items():
        (PLOTS / name).write_text(drawn, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
