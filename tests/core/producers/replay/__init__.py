"""Tests of `sessionary.producers.replay`."""
