"""Every metric is listed, explained and exposed."""

from sessionary.stream_processors.metrics import HELP, Metrics


def test_every_metric_is_explained_and_made() -> None:
    text = Metrics().exposition().decode()
    for name, sentence in HELP.items():
        assert sentence.endswith(".")
        assert f"# HELP {name}" in text
        assert name.startswith("sessionary_processor_")


def test_clocks_are_measured_against_the_worker_and_forgotten_with_their_partition() -> None:
    metrics = Metrics()
    metrics.report_clocks({0: 1_000_060_500, 1: 999_000_000, 2: 0}, 1_000_000.0)
    exposed = metrics.exposition().decode()
    assert 'sessionary_processor_clock_ahead_seconds{partition="0"} 60.5\n' in exposed
    assert 'sessionary_processor_clock_ahead_seconds{partition="1"} -1000.0\n' in exposed
    assert 'seconds{partition="2"}' not in exposed, "its log never had a record"
    metrics.report_clocks({1: 1_000_000_000}, 1_000_000.0)
    exposed = metrics.exposition().decode()
    assert 'sessionary_processor_clock_ahead_seconds{partition="1"} 0.0\n' in exposed
    assert 'sessionary_processor_clock_ahead_seconds{partition="0"}' not in exposed
