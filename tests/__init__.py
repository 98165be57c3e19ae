"""The tests; a package, so that `tests.support` is found whatever else is installed."""
