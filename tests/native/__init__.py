"""The compiled core: how it is built, and that it does what the Python does."""
