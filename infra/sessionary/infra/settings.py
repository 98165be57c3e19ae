"""Settings of the commands themselves. Each role has settings of its own as well."""

from typing import Literal

from pydantic import Field, SecretStr

from sessionary.schemas.settings import EnvSettings


class CommandSettings(EnvSettings):
    """Settings of every role that the command line starts."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least level of what a role writes to stderr"
    )


class OperatorSettings(EnvSettings):
    """How the operators' commands reach the control API."""

    control_url: str | None = Field(
        None, description="control API of any processor, for example http://127.0.0.1:8600; partition and doctor ask it"
    )
    operator_token: SecretStr | None = Field(
        None, description="bearer token with the role operator, for partition and doctor"
    )


__all__ = ["CommandSettings", "OperatorSettings"]
