"""What a growing conversation takes in the changelog; `test_snapshot_views` has ClickHouse."""

from benchmarks.measurements.conversation import RATIO_MAX, TURNS, changelog_ratios
from benchmarks.workload.conversation import hold_conversation


def test_a_conversation_of_200_turns_takes_a_fifth_of_its_size_in_the_changelog() -> None:
    """R-003-65, R-003-66."""
    compacted, written = changelog_ratios(hold_conversation(TURNS, 1, with_text=False))
    assert compacted <= written <= RATIO_MAX
