"""One session as an agent sees it."""
