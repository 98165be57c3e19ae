"""From a payload to an acknowledged record."""
