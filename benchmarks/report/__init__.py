"""Draws docs/performance.md and its plots from the results files: `make bench-report`.

    result_files   results files as values
    comparisons    what is compared with what: engines, figures, and which way is better
    bar_plot       a plot of horizontal bars, as SVG
    page           the tables of the page, and what stands between its marks
    __main__       writes page and plots

No figure is in the page but those of the results files.
"""
