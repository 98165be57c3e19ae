"""The documents; a package, so that `docs.build` is found whatever else is installed."""
