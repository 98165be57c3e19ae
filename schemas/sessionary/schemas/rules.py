"""The versions of the rules by which events are judged, and what each release knew.

A version stands in the log: what was judged by it is judged by it in every replay. A new version
comes with new schemas, because what was unknown to a judge was refused. So until a partition's
rules are activated, its processor reads and writes the schemas of the release that they are from.
"""

from typing import Final

from sessionary.schemas.types import AnnouncedRules, RuleSet

ROW_BYTES_MAX: Final = 4 << 20  # key and value of a row: an event that would make a larger one is refused
FIRST_RULES: Final = RuleSet(1, ROW_BYTES_MAX)  # of every partition until others are activated
NEWEST_RULES: Final = RuleSet(2, ROW_BYTES_MAX)  # that this release knows
# The rules of each release; a schema of today that is in none of them came with the newest rules.
RULES_BY_RELEASE: Final = {"0.1.0": 1}


def rules_to_write(rules: RuleSet, announced: AnnouncedRules | None) -> int:
    """Return the newest version in force or announced: that whose schemas are written."""
    return max(rules.version, announced.version if announced is not None else 1)


__all__ = ["FIRST_RULES", "NEWEST_RULES", "ROW_BYTES_MAX", "RULES_BY_RELEASE", "rules_to_write"]
