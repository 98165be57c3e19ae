"""The change of a partition's rules, in two steps that each may be repeated.

    announce    the owner writes to the changelog which rules are to begin, and who decided it
    begin       a record of the log, sent like a tick until the position has them in force

A new owner finds the announcement in the position and continues with the second step.
"""

from typing import NamedTuple

from sessionary.schemas.records import Position
from sessionary.schemas.rules import newest_known, rules_to_write
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.errors import Halted


class RulesRequest(NamedTuple):
    """Rules that an owner is asked to announce, and who asks for them."""

    rules: RuleSet
    principal: str


def last_decided(position: Position) -> RuleSet:
    """Return the rules that are announced; those in force if none are."""
    return position.rules if position.announced is None else position.announced.rules


def is_decided(position: Position, rules: RuleSet) -> bool:
    """Return whether rules, or rules of a later version, are the last that were decided on."""
    return _replaces(last_decided(position), rules)


def is_in_force(position: Position, rules: RuleSet) -> bool:
    """Return whether rules, or rules of a later version, are in force."""
    return _replaces(position.rules, rules)


def _replaces(found: RuleSet, wanted: RuleSet) -> bool:
    return found == wanted or found.version > wanted.version


def due_request(request: RulesRequest | None, position: Position) -> RulesRequest | None:
    """Return the request if its rules can be announced at `position`, else None.

    While the timers of a record are written in parts, rules cannot be announced: a replay, which
    may cut the timers otherwise, could not find the announcement's place among them. Nor can they
    in an empty partition: there is no time yet for the audit record. Other announced rules begin
    first.
    """
    if request is None or is_decided(position, request.rules) or position.announced is not None:
        return None
    return None if position.outputs_written or not position.clock_ms else request


def needs_tick(request: RulesRequest | None, position: Position) -> bool:
    """Return whether rules are to be announced in a partition that has no time yet."""
    return request is not None and not position.clock_ms and not is_decided(position, request.rules)


def begin_new_partition(position: Position, rules: RuleSet) -> Position:
    """Return where a partition begins by `rules`; its position if it has begun.

    `position` is read from the changelog. A new partition has no position there until a transaction
    is committed. `rules`: the newest that every worker of the group knows.
    """
    return position._replace(rules=rules) if is_new(position) else position


def is_new(position: Position) -> bool:
    """Return whether no record of a partition was judged yet, so that no rules are set."""
    return position == Position(0, 0, 0, 0, 0)


def require_known_rules(partition: int, position: Position) -> None:
    """Raise `Halted` if a partition is, or is to be, judged by rules that this worker lacks."""
    newest, decided = newest_known().version, rules_to_write(position.rules, position.announced)
    if decided > newest:
        raise Halted(
            "unknown_rules",
            f"partition {partition}: rules {decided} were activated, and this worker knows rules {newest} at most: "
            "upgrade this worker",
        )
