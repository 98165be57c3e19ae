"""The page of performance and its plots are as drawn from the results."""

from benchmarks.report.page import PAGE, PLOTS, plot_files, with_results
from benchmarks.report.result_files import read_results


def test_the_page_is_as_drawn_from_the_results() -> None:
    text = PAGE.read_text("utf-8")
    assert with_results(text, read_results()) == text, "make bench-report brings it up to date"


def test_the_plots_are_as_drawn_from_the_results() -> None:
    found = {path.name: path.read_text("utf-8") for path in PLOTS.iterdir()}
    assert found == plot_files(read_results()), "make bench-report brings them up to date"
