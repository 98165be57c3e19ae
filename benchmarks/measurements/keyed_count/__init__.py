"""(a) The keyed count in several engines: one changelog record and one output per event.

    job          the events of the source topic, and the topics and group of one run
    engines      the start of each engine
    counting     our job: counts in place of the session fold
    run_ours     the keyed count in our processor
    run_quix     the keyed count in Quix Streams
    run_faust    the keyed count in stock Faust; Kafka Streams' program is in java/
    check        checks a whole output topic; shares no code with any engine
    compare      runs the engines round by round; rates, ratios, CPU time
    __main__     this measurement alone, with a choice of engines

To run it alone:

    python -m benchmarks.measurements.keyed_count --engines ours,quix --rounds 3 --events 5000000
"""

from benchmarks.measurements.keyed_count.compare import run

__all__ = ["run"]
