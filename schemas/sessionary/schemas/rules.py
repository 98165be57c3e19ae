"""The versions of the rules by which events are judged, and what each release knew.

A version stands in the log: what was judged by it is judged by it in every replay. A new version
comes with new schemas, because what was unknown to a judge was refused. So until a partition's
rules are activated, its processor reads and writes the schemas of the release that they are from.
"""

from typing import Final

from sessionary.schemas.limits import FINISHED_RUN_DAYS, RESUME_MS
from sessionary.schemas.types import AnnouncedRules, RuleSet

ROW_BYTES_MAX: Final = 4 << 20  # key and value of a row: an event that would make a larger one is refused
OUTPUT_BYTES_MAX: Final = 2 << 20  # an audit record or a request repeats an event's texts
REJECTED_BYTES_MAX: Final = 2 << 20  # a rejected record holds the original record
# Of every partition until others are activated. A later release may have other bounds; these stay.
FIRST_RULES: Final = RuleSet(
    1, ROW_BYTES_MAX, FINISHED_RUN_DAYS, OUTPUT_BYTES_MAX, REJECTED_BYTES_MAX, resume_ms=RESUME_MS
)
NEWEST_RULES: Final = FIRST_RULES._replace(version=2)  # that this release knows
# The rules of each release; a schema of today that is in none of them came with the newest rules.
RULES_BY_RELEASE: Final = {"0.1.0": 1}


def rules_to_write(rules: RuleSet, announced: AnnouncedRules | None) -> int:
    """Return the newest version in force or announced: that whose schemas are written."""
    return max(rules.version, announced.version if announced is not None else 1)


__all__ = [
    "FIRST_RULES",
    "NEWEST_RULES",
    "OUTPUT_BYTES_MAX",
    "REJECTED_BYTES_MAX",
    "ROW_BYTES_MAX",
    "RULES_BY_RELEASE",
    "rules_to_write",
]
