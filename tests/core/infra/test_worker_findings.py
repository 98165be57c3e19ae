"""What doctor makes of the workers' answers."""

from typing import Any

import pytest

from sessionary.infra.worker_findings import (
    advise_halt,
    describe_rules,
    describe_workers,
    find_clock_faults,
    find_full_state_disks,
    find_key_faults,
    find_release_faults,
    find_setting_faults,
)
from tests.core.infra.fake_control_api import partition

NOW_MS = 1_800_000_000_000


def worker(name: str = "w1", **fields: Any) -> dict[str, Any]:
    return {
        "instance": name,
        "url": f"http://{name}:8600",
        "newest": 2,
        "detail": None,
        "release": "0.2.0",
        "time_ms": NOW_MS,
        "state_dir": None,
        "state_free_bytes": None,
    } | fields


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("log_gap", "sessionary partition accept-gap 3 --reason"),
        ("log_truncated", "sessionary partition accept-truncation 3 --reason"),
        ("clock_ahead", "sessionary partition repair-clock 3 --reason"),
        ("judge_failed", "sessionary partition skip 3 71 --reason"),
        ("batch_unreadable", "sessionary partition skip 3 71 --reason"),
        ("record_too_large", "sessionary topics apply"),
        ("store_disk_full", "sessionary partition retry 3"),
        ("changelog_incomplete", "sessionary partition rebuild 3"),
        ("changelog_unreadable", "sessionary partition rebuild 3"),
        ("position_lost", "sessionary partition rebuild 3"),
        ("topic_replaced", "sessionary partition rebuild --help"),
        ("a_reason_of_a_later_release", "sessionary partition retry 3"),
    ],
)
def test_a_halt_has_the_command_that_ends_it(reason: str, command: str) -> None:
    assert command in advise_halt(partition(3, "halted", reason=reason, next_offset=71))


def test_after_a_leap_no_retry_is_advised_because_the_stamps_stay_in_the_log() -> None:
    advice = advise_halt(partition(3, "halted", reason="clock_ahead", next_offset=71))
    assert advice.startswith("set the clock that is wrong, then run: sessionary partition repair-clock 3")
    assert "retry" not in advice


@pytest.mark.parametrize(("apart_ms", "is_reported"), [(5_000, False), (5_001, True), (-5_000, False), (-5_001, True)])
def test_a_worker_s_clock_that_differs_is_reported(apart_ms: int, is_reported: bool) -> None:
    found = find_clock_faults([], [worker(), worker("w2", time_ms=NOW_MS + apart_ms)], NOW_MS)
    assert [one.found.startswith("the clock of w2 differs") for one in found] == [True] * is_reported


def test_a_log_clock_ahead_is_reported_with_its_repair_and_one_behind_is_not() -> None:
    ahead = [
        partition(number, clock_ms=clock_ms)
        for number, clock_ms in enumerate((NOW_MS + 5_000, NOW_MS + 5_001, NOW_MS - 900_000, None))
    ]
    (found,) = find_clock_faults(ahead, [worker(time_ms=None)], NOW_MS)
    assert found.found == "the log clock of partition 1 is 5 s ahead"
    assert "sessionary partition repair-clock 1 --reason" in found.advice


def test_an_older_or_silent_worker_is_reported() -> None:
    workers = [worker(), worker("w2", release="0.10.0"), worker("w3", newest=None, instance=None, detail="refused")]
    silent, older = find_release_faults(workers)
    assert silent.found == "http://w3:8600 does not answer: refused"
    assert older.found == "w1 runs release 0.2.0, another worker a newer one"
    assert find_release_faults([worker(), worker("w2")]) == []


def in_force(*rules: int | None) -> list[dict[str, Any]]:
    return [{"partition": number, "rules": version} for number, version in enumerate(rules)]


def test_rules_that_all_workers_know_are_offered_and_are_no_fault() -> None:
    text, faults, advice = describe_rules(in_force(1, None), [worker(), worker("w2", newest=1)])
    assert (text, faults, advice) == ("rules in force: 1", [], "")
    text, faults, advice = describe_rules(in_force(1, None), [worker(), worker("w2")])
    assert text == "rules in force: 1; all workers know rules 2, which begin when an operator activates them"
    assert (faults, advice.endswith("run: sessionary rules activate")) == ([], True)


def test_partitions_of_different_rules_are_a_fault() -> None:
    _, (fault,), _ = describe_rules(in_force(1, 2, 1), [worker()])
    assert fault.found == "rules 1 in partitions 0, 2; rules 2 in partitions 1: an activation is not complete"
    assert fault.advice == "run: sessionary rules activate --version 2"


def test_settings_that_differ_are_named_with_both_workers_and_values() -> None:
    alike = {"SESSIONARY_API_TOKENS": "1a2b3c4d", "SESSIONARY_OUTAGE_MS": 5_000}
    one, two = worker(settings=alike), worker("w2", settings={**alike, "SESSIONARY_OUTAGE_MS": 9})
    older = worker("w3", settings=None)
    assert find_setting_faults([one, worker("w2", settings=alike), older]) == []
    (fault,) = find_setting_faults([one, two, older])
    assert fault.found == "SESSIONARY_OUTAGE_MS differs: w1 has 5000, w2 has 9"
    (fault,) = find_setting_faults([one, worker("w2", settings={**alike, "SESSIONARY_API_TOKENS": None})])
    assert fault.found == "SESSIONARY_API_TOKENS differs: w1 has 1a2b3c4d, w2 has none"


def test_keys_that_the_role_quotas_has_and_processors_have_not_are_named_with_what_they_bring_about() -> None:
    def signing(keys: str | None) -> dict[str, Any]:
        return worker(settings=None if keys is None else {"SESSIONARY_SIGNING_KEYS": keys})

    right, wrong, older = signing("k1 1a2b3c4d"), signing("k1 5e6f7a8b"), signing(None)
    assert find_key_faults([right, older], [right]) == []
    assert find_key_faults([right], [older]) == find_key_faults([], [right]) == []
    (fault,) = find_key_faults([right, right], [wrong])
    assert "the role quotas has k1 5e6f7a8b, processors have k1 1a2b3c4d" in fault.found
    assert "bad_signature" in fault.found


def test_the_core_of_each_worker_is_reported() -> None:
    workers = [worker(core="native"), worker("w2", core="python"), worker("w3")]
    reported = describe_workers(workers)
    assert reported.startswith("w1 0.2.0 (rules up to 2, native core), w2 0.2.0 (rules up to 2, python core), ")
    assert reported.endswith("w3 0.2.0 (rules up to 2, unknown core)")


def test_a_worker_s_full_disk_is_reported() -> None:
    full = worker("w2", state_dir="/state", state_free_bytes=3 << 20)
    (found,) = find_full_state_disks([worker(), full, worker("w3", state_dir="/s", state_free_bytes=4 << 20)], 4 << 20)
    assert found.found == "w2 has 3 MiB left for /state"
