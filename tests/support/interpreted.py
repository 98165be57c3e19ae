"""Says which core the tests test; leaves out those marked `interpreted` where it is compiled."""

import pytest

MARK = "interpreted"
_KEY = "left_out_as_interpreted"


class Interpreted:
    """Plugin: with a compiled core it deselects what only the Python core can pass."""

    def __init__(self, core: str) -> None:
        """Take the build of the core that this process has loaded, by `core_build`."""
        self._core = core
        self._by_worker: dict[str, int] = {}

    def pytest_report_header(self) -> str:
        """Say above the tests which core they test."""
        return f"core: {self._core}"

    @pytest.hookimpl(trylast=True)  # count only what the options have selected
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the marked tests."""
        left_out = [item for item in items if item.get_closest_marker(MARK)] if self._core == "native" else []
        items[:] = [item for item in items if item not in left_out]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        self._by_worker[""] = len(left_out)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the controlling process, which collects nothing itself."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[_KEY] = self._by_worker.get("", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take the number from a worker; all workers collect the same."""
        output: dict[str, int] = getattr(node, "workeroutput", {})
        self._by_worker[repr(node)] = output.get(_KEY, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number, and the reason."""
        if left_out := max(self._by_worker.values(), default=0):
            terminalreporter.write_line(
                f"{left_out} tests marked {MARK} were left out: they change what is fixed in the compiled core, "
                "which runs here; make native-remove, and they run"
            )
