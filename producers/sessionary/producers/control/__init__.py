"""The control API and clean-up requests."""
