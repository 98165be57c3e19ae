"""Tests of the agents of a session, as a client has them."""
