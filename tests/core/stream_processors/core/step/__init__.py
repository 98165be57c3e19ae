"""Tests of the machine of steps."""
