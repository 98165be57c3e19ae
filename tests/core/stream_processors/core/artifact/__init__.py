"""Tests of the machine of artifacts."""
