"""Draws docs/performance.md and its plots from the results files: `make bench-report`.

    result_files   results files as values
    comparisons    the comparisons: engines, figures, and the better direction
    bar_plot       a plot of horizontal bars, as SVG
    page           the tables of the page, and the text between its marks
    __main__       writes page and plots

The page has only figures of the results files.
"""
