"""A worker that also knows the second rules: `python -m tests.support.second_rules.worker`."""

from sessionary.schemas.rules import add_rules
from tests.support.second_rules import SECOND


def main() -> None:
    """Run a processor."""
    add_rules(SECOND)  # before the processor is imported, and reads schemas
    from sessionary.stream_processors.process import run_processor
    from sessionary.stream_processors.runtime.job import processor_job
    from sessionary.stream_processors.settings import ProcessorSettings

    settings = ProcessorSettings.from_env()
    run_processor(settings, processor_job(settings))


if __name__ == "__main__":
    main()
