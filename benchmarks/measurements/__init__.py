"""The parts, in the order in which they run. Each is a module with `run(bench: Bench) -> list[Result]`.

A module is imported when its turn comes, so that one part's dependencies are not another's. Its name is its results
file's name, and the name under which `Bench.done` keeps its figures for the parts after it.
"""

from typing import NamedTuple


class Measurement(NamedTuple):
    """One measuring program: the letter that names it on the command line (several may share one), and its module."""

    letter: str
    name: str
    title: str

    @property
    def module(self) -> str:
        """The module that holds `run`."""
        return f"benchmarks.{self.name}"


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement("a", "keyed_count", "Counting by key, beside other engines"),
    Measurement("b", "full_job", "The full job of one processor"),
    Measurement("b", "quix_core", "The same core in Quix Streams"),
    Measurement("c", "latency", "From the client's call to the audit record"),
    Measurement("d", "recovery", "Recovery from the changelog"),
    Measurement("e", "footprint", "What an idle session costs"),
    Measurement("f", "sinks", "Rows into ClickHouse"),
    Measurement("g", "client_cost", "What the client costs its agent"),
    Measurement("h", "growth", "Cost per event as live sessions grow"),
    Measurement("r", "restart", "Restart and takeover after kill -9"),
)

__all__ = ["MEASUREMENTS", "Measurement"]
