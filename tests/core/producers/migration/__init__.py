"""Tests of `sessionary.producers.migration`."""
