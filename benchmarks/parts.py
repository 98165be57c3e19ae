"""The parts, in the order in which they run. Each is a module with `run(bench: Bench) -> list[Result]`.

A module is imported when its turn comes, so that one part's dependencies are not another's. Its name is its results
file's name, and the name under which `Bench.done` keeps its figures for the parts after it.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """One measuring program: the letter that names it on the command line (several may share one), and its module."""

    letter: str
    name: str
    title: str

    @property
    def module(self) -> str:
        """The module that holds `run`."""
        return f"benchmarks.{self.name}"


PARTS: tuple[Part, ...] = (
    Part("a", "keyed_count", "Counting by key, beside other engines"),
    Part("b", "full_job", "The full job of one processor"),
    Part("b", "quix_core", "The same core in Quix Streams"),
    Part("c", "latency", "From the client's call to the audit record"),
    Part("d", "recovery", "Recovery from the changelog"),
    Part("e", "footprint", "What an idle session costs"),
    Part("f", "sinks", "Rows into ClickHouse"),
    Part("g", "client_cost", "What the client costs its agent"),
    Part("h", "growth", "Cost per event as live sessions grow"),
    Part("r", "restart", "Restart and takeover after kill -9"),
)

__all__ = ["PARTS", "Part"]
