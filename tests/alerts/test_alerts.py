"""Real alerts of a real stack reach a webhook, and end. The same as `make alerts`."""

import sys

import pytest

from sessionary.infra.alerts.thresholds import read_thresholds
from tests.alerts.__main__ import SCENARIOS, SETTINGS, run_scenarios
from tests.alerts.episode import Episode
from tests.alerts.report import Figures, find_faults, report_lines
from tests.alerts.scenarios import SESSIONS, ReclaimFigures
from tests.support.debian_packages import MONITORING, NotInstalled, install_programs


@pytest.mark.skipif(bool(MONITORING.missing), reason=f"make monitoring installs {' and '.join(MONITORING.packages)}")
def test_alerts_reach_the_webhook_in_time_and_end_when_their_cause_is_gone() -> None:
    episodes, figures = run_scenarios(SCENARIOS, lambda text: None)
    sys.stdout.write("\n".join(report_lines(episodes, figures)))
    assert find_faults(episodes, figures) == []
    expected = {"SessionaryLagTime", "SessionaryProcessorDown", "SessionaryPartitionHalted", "SessionaryReclaimLow"}
    assert expected <= {episode.alert for episode in episodes}
    for episode in episodes:
        times = [at_s for at_s in (episode.pending_s, episode.firing_s, episode.webhook_s) if at_s is not None]
        assert len(times) == 3
        assert times == sorted(times)
        assert episode.alert == "SessionaryReclaimLow" or episode.resolved_s is not None
    assert figures.reclaim is not None
    assert figures.reclaim.timed_out == SESSIONS
    assert figures.reclaim.confirmed == SESSIONS * 9 // 10
    assert figures.load_events > 100


def _episode(alert: str, *, fact_s: float, series_s: float, webhook_s: float) -> Episode:
    return Episode("s", alert, {}, 5.0, 100.0, fact_s=fact_s, series_s=series_s, webhook_s=webhook_s)


def test_an_alert_that_is_late_is_a_fault() -> None:
    good = _episode("SessionaryLagTime", fact_s=110.0, series_s=111.5, webhook_s=124.0)
    assert find_faults([good], Figures()) == []
    late = [
        _episode("SessionaryLagTime", fact_s=110.0, series_s=112.5, webhook_s=124.0),
        _episode("SessionaryProcessorDown", fact_s=110.0, series_s=112.5, webhook_s=126.0),
    ]
    assert [text.partition(":")[2] for text in find_faults(late, Figures())] == [
        " the lag was served after 2.5 s, 2 are allowed",
        " SessionaryProcessorDown came 11.0 s after its time, 10 are allowed",
    ]
    assert find_faults(late, Figures(slack_s=1.0)) == []  # on a machine that was so busy


def test_a_wrong_ratio_an_unready_worker_and_what_is_left_behind_are_faults() -> None:
    assert find_faults([], Figures(reclaim=ReclaimFigures(40, 36, 0.9), is_ready_while_halted=True)) == []
    figures = Figures(reclaim=ReclaimFigures(40, 40, 0.8), is_ready_while_halted=False)
    assert len(find_faults([], figures)) == 3
    assert find_faults([], Figures(left_over=["port 9"])) == ["left behind: port 9"]


def test_a_machine_without_apt_get_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.debian_packages.shutil.which", lambda _name: None)
    with pytest.raises(NotInstalled, match="there is no apt-get; install them by hand: apt-get install"):
        install_programs(MONITORING)


def test_the_settings_of_the_run_are_quicker_than_the_defaults() -> None:
    defaults = read_thresholds().model_dump()
    changed = {name: value for name, value in SETTINGS.model_dump().items() if value != defaults[name]}
    assert changed
    assert all(value < defaults[name] for name, value in changed.items())


def test_a_table_has_a_line_for_each_alert() -> None:
    episode = _episode("SessionaryLagTime", fact_s=110.0, series_s=111.5, webhook_s=124.0)
    lines = report_lines([episode], Figures(other_alerts={"SessionaryX": "it happened"}))
    assert "10.0      11.5         -         -      24.0" in lines[1]
    assert "    X: it happened" in lines
