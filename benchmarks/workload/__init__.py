"""The load of the measurements, made from recorded agent runs.

    events           the events that the client sends for recorded runs, multiplied and interleaved
    live_sessions    a changelog full of sessions that live but are silent
    tombstones      a changelog full of packed tombstones

The same runs and seed give the same bytes.
"""
