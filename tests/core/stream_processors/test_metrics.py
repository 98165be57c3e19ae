"""Every metric is listed, explained and exposed."""

from sessionary.stream_processors.metrics import HELP, Metrics


def test_every_metric_is_explained_and_made() -> None:
    text = Metrics().exposition().decode()
    for name, sentence in HELP.items():
        assert sentence.endswith(".")
        assert f"# HELP {name}" in text
        assert name.startswith("sessionary_processor_")
