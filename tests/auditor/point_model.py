"""The oracle's model of points to go back to: checkpoints, snapshots, transactions."""

from tests.auditor.decoding import Rejection, Row
from tests.auditor.snapshot_model import check_state

KEPT, KEPT_CHARACTERS = 16, 262_144
OPEN_MAX, OPEN_MS = 128, 3_600_000
TXN_TYPES = ("txn_begun", "txn_committed", "txn_rolled_back")
_PLACE = ("kind", "stage", "processed_count", "last_item_id", "bytes_written")


def is_kept(kind: str, fields: Row) -> bool:
    """Tell whether an event is a checkpoint with data, which has a row."""
    return kind == "checkpoint_saved" and fields["data_json"] is not None


def next_checkpoint(known: Row | None, row: Row, run: Row | None, fields: Row, now: int) -> Row:
    """Return the row of an operation after a checkpoint of it; `row` is its session."""
    saved = fields["checkpoint_id"], now, fields["data_json"], *(fields.get(name) for name in _PLACE)
    return _next_row(known, row, None if run is None else run["run_id"], fields["operation"], saved)


def next_snapshot(known: Row | None, row: Row, snapshot: Row, now: int) -> Row:
    """Return the row of a session's snapshots after one more."""
    saved = snapshot["snapshot_id"], now, snapshot["state_json"], None, None, None, None, None
    return _next_row(known, row, None, "", saved)


def _next_row(
    known: Row | None, row: Row, run_id: str | None, operation: str, entry: tuple[str | int | None, ...]
) -> Row:
    saved = [*([] if known is None else known["saved"]), entry][-KEPT:]
    while len(saved) > 1 and sum(len(each[2]) for each in saved) > KEPT_CHARACTERS:
        saved = saved[1:]
    same = {name: row[name] for name in ("tenant", "session")}
    return same | {
        "kind": "CheckpointState",
        "run_id": run_id,
        "operation": operation,
        "saved": saved,
        "state": "",
    }


def check_version(row: Row, fields: Row) -> None:
    """Raise `Rejection` unless an event makes the next version of the content."""
    if (fields["base_version"], fields["new_version"]) != (row["version"], row["version"] + 1):
        raise Rejection("version_conflict")


def check_content(row: Row, fields: Row) -> None:
    """Raise `Rejection` unless an event makes the next version, of a state."""
    check_version(row, fields)
    check_state(fields["state_json"])


def restored(row: Row, known: Row | None, fields: Row) -> str:
    """Return the content to which a session goes back, or raise `Rejection`."""
    check_version(row, fields)
    found = {row["head"]: row["whole"]["state_json"]}
    found |= {each[0]: each[2] for each in ([] if known is None else known["saved"])}
    if fields["snapshot_id"] in found:
        return str(found[fields["snapshot_id"]])
    if fields.get("state_json") is None or fields["snapshot_id"] not in row["snapshot_ids"]:
        raise Rejection("unknown_snapshot")
    check_state(fields["state_json"])
    return str(fields["state_json"])


def overdue(row: Row, now: int) -> list[tuple[str, int, str]]:
    return [each for each in row["transactions"] if each[1] + OPEN_MS <= now]


def check_transaction(row: Row, kind: str, fields: Row, now: int) -> None:
    """Raise `Rejection` unless an event may begin or end a transaction of a session."""
    late = overdue(row, now)
    known = {each[0] for each in row["transactions"] if each not in late}
    name = fields["transaction_id"]
    if kind == "txn_begun":
        if name in known or name == "":
            raise Rejection("invalid_value")
        if len(known) >= OPEN_MAX:
            raise Rejection("too_many_transactions")
        return
    if name not in known:
        raise Rejection("unknown_transaction")
    if kind == "txn_committed":
        check_content(row, fields)
