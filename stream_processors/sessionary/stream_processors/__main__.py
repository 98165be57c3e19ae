"""`python -m sessionary.stream_processors`: a worker, configured by `SESSIONARY_*` variables."""

from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.settings import ProcessorSettings

if __name__ == "__main__":
    run_processor(ProcessorSettings.from_env())
