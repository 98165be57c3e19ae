"""Tests of the machine of messages."""
