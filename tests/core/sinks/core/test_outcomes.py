from sessionary.sinks.core.outcomes import OUTCOMES, fill_outcomes
from sessionary.stream_processors.core.session.transitions import TRANSITIONS


def test_each_reason_code_of_an_ending_has_one_of_few_outcomes() -> None:
    ends = [transition for transition in TRANSITIONS if transition.target == "Terminated"]
    codes = {code for end in ends for code in (*end.reasons, *(clock.reason_code for clock in end.clocks))}
    assert set(OUTCOMES) == codes, "an ending without an outcome, or an outcome without an ending"
    assert set(OUTCOMES.values()) == {"completed", "user_left", "failed", "cancelled", "timed_out"}


def test_the_table_is_written_into_a_view_as_two_arrays_of_one_length() -> None:
    filled = fill_outcomes("transform(code, {reason_codes}, {outcomes}, 'unknown')")
    codes, outcomes = filled.removeprefix("transform(code, [").removesuffix("], 'unknown')").split("], [")
    assert codes.split(", ")[0] == "'closed'"
    assert outcomes.split(", ")[0] == "'completed'"
    assert len(codes.split(", ")) == len(outcomes.split(", ")) == len(OUTCOMES)
