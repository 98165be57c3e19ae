"""Measurements of the whole pipeline: `python -m benchmarks`, or `make bench`. What each figure means: README.md."""
