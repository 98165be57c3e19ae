"""Tests of the machine of agents."""
