"""The base of every role's settings class: fields from `SESSIONARY_*` environment variables.

The field `topic_prefix` is read from `SESSIONARY_TOPIC_PREFIX`. Variables without a field are
ignored, because they belong to other roles.
"""

import os
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from sessionary.schemas.errors import SettingsError

ENV_PREFIX = "SESSIONARY_"


class EnvSettings(BaseModel):
    """A frozen group of settings, which `from_env` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read every field from its variable in `environ`, by default the process's environment.

        `overrides` that are not None win. Raises `SettingsError` with every variable that is wrong.
        """
        source = os.environ if environ is None else environ
        values: dict[str, object] = {
            name: source[variable] for name in cls.model_fields if (variable := ENV_PREFIX + name.upper()) in source
        }
        values.update(cls._further_values(source))
        values.update((name, value) for name, value in overrides.items() if value is not None)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError("; ".join(_fault_text(fault) for fault in error.errors())) from None

    @classmethod
    def _further_values(cls, _environ: Mapping[str, str]) -> Mapping[str, object]:
        """Return the values of fields that are not read from one variable each."""
        return {}


def _fault_text(fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    if text.startswith(ENV_PREFIX):
        return text  # it names its variables itself
    return f"{ENV_PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {text}"


class LogSettings(EnvSettings):
    """What a server role writes to its log."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least level of what a role writes to stderr"
    )
    log_format: Literal["json", "text"] | None = Field(
        None, description="form of a role's log lines: json or text; by default text on a terminal, else json"
    )
