"""Finds faults of a group's processors in the documents of their control API; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

Document = Mapping[str, Any]
# The log's clock is the broker's, so it may be a little ahead; 5 s would look like an outage.
_AHEAD_S_MAX: Final = 5.0
# Workers answer for each other within 3 s.
_APART_S_MAX: Final = 5.0
_MIB: Final = 1 << 20
_DECISIONS: Final[Mapping[str, str]] = {
    "log_gap": 'sessionary partition accept-gap {partition} --reason "…"',
    "log_truncated": 'sessionary partition accept-truncation {partition} --reason "…"',
    "clock_ahead": 'sessionary partition repair-clock {partition} --reason "…"',
    "wrong_timestamp_type": 'sessionary topics apply; sessionary partition skip {partition} {next_offset} --reason "…"',
    "batch_unreadable": 'sessionary partition skip {partition} {next_offset} --reason "…"',
    "judge_failed": 'sessionary partition skip {partition} {next_offset} --reason "…"',
    "changelog_incomplete": "sessionary partition rebuild {partition} --dry-run",
    "changelog_unreadable": "sessionary partition rebuild {partition} --dry-run",
    "position_lost": "sessionary partition rebuild {partition} --dry-run",
    "topic_replaced": "sessionary partition rebuild --help",
    "record_too_large": "sessionary topics apply; sessionary partition retry {partition}",
}


class Finding(NamedTuple):
    """A fault, and the command that mends it."""

    found: str
    advice: str


def advise_halt(partition: Document) -> str:
    """Return how a halted partition resumes: by its cause's removal, or by a decision."""
    retry = f"remove the cause, then run: sessionary partition retry {partition['partition']}"
    decision = _DECISIONS.get(str(partition["reason"]))
    if decision is None:
        return retry
    if partition["reason"] == "clock_ahead":
        return f"set the clock that is wrong, then run: {decision.format_map(partition)}"
    return f"{retry}; if it cannot be removed: {decision.format_map(partition)}"


def find_clock_faults(partitions: Sequence[Document], workers: Sequence[Document], now_ms: int) -> list[Finding]:
    """Return the clocks that differ from `now_ms`: of workers, and logs' clocks that are ahead.

    A worker of an older release reports no clock.
    """
    apart = [
        Finding(
            f"the clock of {worker['instance']} differs from this one by {(worker['time_ms'] - now_ms) / 1_000:+.0f} s",
            f"set the one that is wrong: chronyc makestep, here or on the machine of {worker['url']}",
        )
        for worker in workers
        if worker.get("time_ms") is not None and abs(worker["time_ms"] - now_ms) > _APART_S_MAX * 1_000
    ]
    return apart + [
        Finding(
            f"the log clock of partition {found['partition']} is {(found['clock_ms'] - now_ms) / 1_000:.0f} s ahead",
            "set the clock that is wrong, then run: "
            f'sessionary partition repair-clock {found["partition"]} --reason "…"',
        )
        for found in partitions
        if (found.get("clock_ms") or 0) - now_ms > _AHEAD_S_MAX * 1_000
    ]


def find_release_faults(workers: Sequence[Document]) -> list[Finding]:
    """Return the workers that do not answer, and those of another release than the newest one."""
    silent = [
        Finding(
            f"{worker['url']} does not answer: {worker['detail']}",
            "read its log, or restart: sessionary serve processor",
        )
        for worker in workers
        if worker["newest"] is None
    ]
    reported = [worker for worker in workers if worker["newest"] is not None]
    newest = max((_release_order(worker) for worker in reported), default=())
    return silent + [
        Finding(
            f"{worker['instance']} runs release {worker.get('release') or 'unknown'}, another worker a newer one",
            f"upgrade it and restart: sessionary serve processor (instance {worker['instance']})",
        )
        for worker in reported
        if _release_order(worker) < newest
    ]


def describe_workers(workers: Sequence[Document]) -> str:
    """Return releases, rules and builds of the workers side by side, in a line."""
    return ", ".join(
        f"{worker['instance']} {worker.get('release') or 'of an unknown release'} "
        f"(rules up to {worker['newest']}, {worker.get('core') or 'unknown'} core)"
        for worker in workers
    )


def describe_rules(partitions: Sequence[Document], workers: Sequence[Document]) -> tuple[str, list[Finding], str]:
    """Return the rules in force; their faults; and advice if all workers know newer ones.

    Older rules are no fault: while a release is rolled out, and until an operator activates the
    newer ones, from which there is no way back. That partitions have different ones is a fault.
    """
    of_partitions: dict[int, list[int]] = {}
    for found in partitions:
        if found["rules"] is not None:
            of_partitions.setdefault(found["rules"], []).append(found["partition"])
    newest = max(of_partitions, default=0)
    text = "; ".join(
        f"rules {version} in partitions {', '.join(map(str, places))}"
        for version, places in sorted(of_partitions.items())
    )
    if len(of_partitions) > 1:
        unfinished = Finding(
            f"{text}: an activation is not complete", f"run: sessionary rules activate --version {newest}"
        )
        return text, [unfinished], ""
    known = min((worker["newest"] for worker in workers if worker["newest"] is not None), default=0)
    text = f"rules in force: {newest or 'none'}"
    if 0 < newest < known:
        return (
            f"{text}; all workers know rules {known}, which begin when an operator activates them",
            [],
            "once no worker is to go back to the former release, run: sessionary rules activate",
        )
    return text, [], ""


def find_setting_faults(workers: Sequence[Document]) -> list[Finding]:
    """Return the settings that must be the same in all workers and are not, with their values."""
    reported = {str(worker["instance"]): worker["settings"] for worker in workers if worker.get("settings")}
    names = dict.fromkeys(name for settings in reported.values() for name in settings)
    findings = []
    for name in names:
        values = {instance: settings.get(name) for instance, settings in reported.items()}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{instance} has {_setting_text(value)}" for instance, value in values.items())
            advice = f"set {name} alike for all workers, and restart those that are wrong"
            findings.append(Finding(f"{name} differs: {shown}", advice))
    return findings


def find_key_faults(processors: Sequence[Document], quota_workers: Sequence[Document]) -> list[Finding]:
    """Return whether the role quotas has other signing keys than the processors, which verify."""
    name = "SESSIONARY_SIGNING_KEYS"
    known, signing = (
        sorted({str(worker["settings"][name]) for worker in group if name in (worker.get("settings") or {})})
        for group in (processors, quota_workers)
    )
    if not known or not signing or known == signing:
        return []
    return [
        Finding(
            f"{name} differs: the role quotas has {'; '.join(signing)}, processors have {'; '.join(known)}: these may "
            "refuse every verdict (bad_signature), and what asks for quotas then waits for ever",
            "give both roles the same file of keys, and restart those that are wrong",
        )
    ]


def _setting_text(value: object) -> str:
    return "none" if value is None else str(value)


def find_name_faults(members: Mapping[str, Mapping[str, Sequence[object]]]) -> list[Finding]:
    """Return the names that several processes of a group have.

    `members`: for each group, the processes of each such name.
    """
    return [
        Finding(
            f"{name} is the name of {len(processes)} processes of {group}: {', '.join(map(str, processes))}",
            "give each its own SESSIONARY_INSTANCE, and restart one",
        )
        for group, names in members.items()
        for name, processes in names.items()
    ]


def find_quota_faults(quota_workers: int | None, who: str) -> list[Finding]:
    """Return why runs or sessions (`who`) that ask for quotas are not admitted.

    `quota_workers`: the number of running workers of the role quotas; None if Kafka does not report
    it.
    """
    if quota_workers is None:
        return [
            Finding("Kafka does not show whether a worker of quotas runs", "read the log of sessionary serve processor")
        ]
    if quota_workers:
        return []
    start = (
        "start one: SESSIONARY_QUOTAS_FILE=quotas.json sessionary serve quotas "
        "(a local stack: sessionary up --quotas FILE)"
    )
    return [Finding(f"{who} ask for quotas, and no worker of that role runs: further {who} wait for ever", start)]


def find_full_state_disks(workers: Sequence[Document], bytes_min: int) -> list[Finding]:
    """Return the workers whose disk for RocksDB has less than `bytes_min` bytes of room."""
    return [
        Finding(
            f"{worker['instance']} has {worker['state_free_bytes'] // _MIB:,} MiB left for {worker['state_dir']}",
            f"make room there: du -xh {worker['state_dir']} | sort -h | tail; or move SESSIONARY_STATE_DIR",
        )
        for worker in workers
        if worker.get("state_free_bytes") is not None and worker["state_free_bytes"] < bytes_min
    ]


def _release_order(worker: Document) -> tuple[int, ...]:
    parts = str(worker.get("release") or "").split(".")
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
