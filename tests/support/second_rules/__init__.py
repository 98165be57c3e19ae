"""A second version of the rules, which only tests have, with second versions of three schemas.

By these rules a row has at most an eighth of the bytes. The schemas of `SessionActivity`, of
`BatchRecord` and of `Tombstone` have their fields in another order. So an event of this form is
known to judges by these rules only, and a batch and a tombstone are written in it from their
announcement on.

    known     lets this process know them for a while; an event that only they know
    worker    a processor that knows them: `python -m tests.support.second_rules.worker`
"""

from pathlib import Path

from sessionary.schemas.rules import NEWEST_RULES, KnownRules

SECOND_RULES = NEWEST_RULES._replace(version=NEWEST_RULES.version + 1, row_bytes_max=NEWEST_RULES.row_bytes_max // 8)
SECOND = KnownRules(SECOND_RULES, Path(__file__).parent)


__all__ = ["SECOND", "SECOND_RULES"]
