"""Running sessionary: the command line and the local stack. May import every other package; nobody imports it."""
