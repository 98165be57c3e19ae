"""Settings of the commands themselves. Each role has settings of its own as well."""

from typing import Literal

from pydantic import Field

from sessionary.schemas.settings import EnvSettings


class CommandSettings(EnvSettings):
    """Settings of every role that the command line starts."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least level of what a role writes to stderr"
    )


__all__ = ["CommandSettings"]
