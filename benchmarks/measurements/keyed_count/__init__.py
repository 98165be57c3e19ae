"""(a) The keyed-count job in several engines: per event one changelog record and one output, exactly once.

job        what stands on the source topic, and what an engine is told
engines    how each engine is started; run_ours, run_quix, run_faust and java/ are what is started
check      whether an output is right: reads all of it, shares nothing with any engine
compare    one engine after the other, round by round; rates, ratios, processor time

    python -m benchmarks.measurements.keyed_count --engines ours,quix --rounds 3 --events 5000000
"""

from benchmarks.measurements.keyed_count.compare import run

__all__ = ["run"]
