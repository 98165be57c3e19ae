"""(s) The full job of a processor beside the same job as a program on Kafka Streams.

    table           the table of transitions, and the bounds of values, as JSON for the program
    java_program    builds the program; its sources are in java/
    engines         the log of one round, and its reading by each engine
    outputs         the engines' outputs, compared record by record
    compare         the rounds: rates, CPU time and ratios

Both read one log of the same events, from topics that were filled before. The
measurement fails if they write other audit records or clean-up requests.
"""

from benchmarks.measurements.streams_full_job.compare import run

__all__ = ["run"]
