"""The session's machine."""
