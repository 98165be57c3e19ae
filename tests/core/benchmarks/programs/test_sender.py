"""The open-loop sender."""

from benchmarks.programs.sender import AUDITED, SCRIPT_EVENTS, run_scripts


def test_a_sender_keeps_its_rate_and_names_what_is_audited() -> None:
    class Script:
        def send_event(self, n: int) -> str | None:
            return f"s/{AUDITED[n]}" if n in AUDITED else None

    lines = list(run_scripts(Script, rate=SCRIPT_EVENTS * 100, seconds=0.1))
    assert len(lines) > len(AUDITED)
    assert lines[-1].startswith("late_ms ")
