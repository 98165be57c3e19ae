"""A worker that folds for long after it left its group, until others have its partitions.

`python -m tests.support.patient_worker`: on a busy machine the usual five seconds are over before a
test has seen that the worker left.
"""

from sessionary.stream_processors import worker
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.settings import ProcessorSettings

if __name__ == "__main__":
    worker._HAND_OVER_S = 300.0
    run_processor(ProcessorSettings.from_env())
