"""The rules, pure: no clock, no I/O, no log."""
