"""Tests of the machine of reserved tool calls."""
