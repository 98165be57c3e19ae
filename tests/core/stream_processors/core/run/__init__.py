"""Tests of the machine of runs."""
