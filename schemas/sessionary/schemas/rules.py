"""The rules by which events are judged, each with a version, and the schemas that came with them.

A version stands in the log: a record that was judged by a version is judged by it in every replay.
An older judge rejected all that it did not know. So until newer rules are activated in a partition,
its processor reads and writes the schemas that came with the rules in force.

This release has one version. The tests add a second one to a process, before it imports anything
that reads a schema (`add_rules`).
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from sessionary.schemas.limits import FINISHED_RUN_DAYS, RESUME_MS
from sessionary.schemas.types import AnnouncedRules, RuleSet

ROW_BYTES_MAX: Final = 4 << 20  # key and value of a row: an event that would make a larger one is rejected
OUTPUT_BYTES_MAX: Final = 2 << 20  # an audit record or a request repeats an event's texts
REJECTED_BYTES_MAX: Final = 2 << 20  # a rejected record holds the original record
# The newest that this release has. A later release may have other bounds; these stay.
NEWEST_RULES: Final = RuleSet(
    2, ROW_BYTES_MAX, FINISHED_RUN_DAYS, OUTPUT_BYTES_MAX, REJECTED_BYTES_MAX, resume_ms=RESUME_MS
)


class KnownRules(NamedTuple):
    """Rules that this process knows, as they begin without settings.

    `schemas`: the folder of the schemas (`*.avsc`) that came with them; those of the first version
    are in `avro/`.
    """

    rules: RuleSet
    schemas: Path | None = None


_known = {NEWEST_RULES.version: KnownRules(NEWEST_RULES)}


def known_rules() -> Mapping[int, KnownRules]:
    """Return all rules that this process knows by version, the oldest first."""
    return MappingProxyType(_known)


def newest_known() -> RuleSet:
    """Return the newest rules that this process knows."""
    return _known[max(_known)].rules


def add_rules(known: KnownRules) -> None:
    """Let this process know newer rules, with a version that is one more than the newest known."""
    _known[known.rules.version] = known


def rules_to_write(rules: RuleSet, announced: AnnouncedRules | None) -> int:
    """Return the newest version in force or announced, whose schemas are written."""
    return max(rules.version, announced.version if announced is not None else rules.version)
