"""The control API."""
