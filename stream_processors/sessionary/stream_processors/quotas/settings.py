"""The limits of tenants, from a JSON file that is read again if it changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import Field

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.schemas.ids import valid_name
from sessionary.schemas.limits import NUMBER_MAX
from sessionary.schemas.settings.env_settings import RereadFile
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.core.quota.limits import HOLDERS_MAX, WINDOW_S_MAX, OverPolicy, TenantLimits
from sessionary.stream_processors.settings import ProcessorSettings, quotas_group

# Settings of a worker of the role quotas.


class QuotaSettings(ProcessorSettings):
    """Settings of one worker: those of a processor, and the tenants' limits.

    Its topics are named as a processor's are: `events` is the log that it folds.
    """

    quotas_file: Path | None = Field(
        None,
        description="JSON file of the tenants' limits, such as "
        '{"default": {"concurrent_runs": 20, "over": "queue"}, "tenants": {"acme": {"tokens": 100000}}}; '
        "the file is read again if it changes; without a file no tenant has a limit",
    )

    @classmethod
    def _further_values(cls, environ: Mapping[str, str]) -> Mapping[str, object]:
        return {**super()._further_values(environ), "faust_agents": None}  # those are the processors'

    @property
    def topics(self) -> TopicNames:
        """The topic names with the prefix; the role's log and changelog are in their places."""
        names = self.pipeline_topics
        return names._replace(events=names.quotas, changelog=names.quotas_changelog)

    @property
    def pipeline_topics(self) -> TopicNames:
        """The topic names with the prefix, as all other roles have them."""
        return TopicNames.with_prefix(self.topic_prefix)

    @property
    def group_id(self) -> str:
        """The consumer group of the role's workers; their transactional ids begin with it."""
        return quotas_group(self.topic_prefix)


_log = role_logger(__name__)
_POLICIES: Final = get_args(OverPolicy)
_NUMBERS: Final = (
    ("concurrent_runs", 0, HOLDERS_MAX),
    ("live_sessions", 0, HOLDERS_MAX),
    ("tokens", 0, NUMBER_MAX),
    ("token_window_s", 1, WINDOW_S_MAX),
)
_FORM: Final = 'use {"default": {…}, "tenants": {"acme": {"concurrent_runs": 3, "over": "queue"}}}'


class LimitsFile:
    """Knows each tenant's limits. `refresh` and `limits_of` belong to one thread."""

    def __init__(self, path: Path | None) -> None:
        """Read the file, if there is one; this blocks.

        Raises `SettingsError` if it cannot be used.
        """
        self._file = None if path is None else RereadFile(path, parse_limits)
        self._has_failed = False
        self._default, self._tenants = TenantLimits(), dict[str, TenantLimits]()
        try:
            self._read_if_changed()
        except (OSError, ValueError) as error:
            raise SettingsError(f"SESSIONARY_QUOTAS_FILE: {path}: {cause_text(error)}") from None

    def limits_of(self, tenant_id: str) -> TenantLimits:
        """Return a tenant's limits."""
        return self._tenants.get(tenant_id, self._default)

    @property
    def limits_sessions(self) -> bool:
        """Whether a tenant may have fewer live sessions than a row has room for."""
        return any(limits.live_sessions < HOLDERS_MAX for limits in (self._default, *self._tenants.values()))

    @property
    def limits_tokens(self) -> bool:
        """Whether a tenant has a limit of tokens."""
        return any(limits.tokens is not None for limits in (self._default, *self._tenants.values()))

    def refresh(self) -> None:
        """Read the file again if it changed.

        A file that cannot be used changes nothing; the fault is logged once, and the file is tried
        again.
        """
        if self._file is None:
            return
        path = self._file.path
        try:
            changed = self._read_if_changed()
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                text = "the file of quotas %(path)s cannot be used, the former limits stay in force: %(error)s"
                _log.error(text, path=path, error=cause_text(error))
            return
        if changed or self._has_failed:
            self._has_failed = False
            _log.info("limits of %(tenants)d tenants are in force, of %(path)s", tenants=len(self._tenants), path=path)

    def _read_if_changed(self) -> bool:
        found = None if self._file is None else self._file.read_if_changed()
        if found is None:
            return False
        self._default, self._tenants = found
        return True


def parse_limits(source: bytes) -> tuple[TenantLimits, dict[str, TenantLimits]]:
    """Return the default and the limits by tenant. Raises `ValueError` that says what is wrong."""
    try:
        found = json.loads(source)
    except (ValueError, RecursionError):
        raise ValueError(f"this is no JSON: {_FORM}") from None
    if not isinstance(found, dict) or found.keys() - {"default", "tenants"}:
        raise ValueError(_FORM)
    default = _parse_one("default", found.get("default", {}), TenantLimits())
    tenants = found.get("tenants", {})
    if not isinstance(tenants, dict):
        raise ValueError(_FORM)
    for name in tenants:
        if not valid_name(name):
            raise ValueError(f"{name!r} is no name of a tenant")
    return default, {name: _parse_one(f"tenant {name}", one, default) for name, one in tenants.items()}


def _parse_one(what: str, found: Any, default: TenantLimits) -> TenantLimits:
    """Return limits; missing values are those of `default`."""
    unknown = sorted(found.keys() - set(TenantLimits._fields)) if isinstance(found, dict) else [repr(found)]
    if unknown:
        raise ValueError(f"{what}: the limits are {', '.join(TenantLimits._fields)}, not {', '.join(unknown)}")
    limits = default._replace(**found)
    for name, least, most in _NUMBERS:
        number = getattr(limits, name)
        if name == "tokens" and number is None:
            continue  # no limit
        if type(number) is not int or not least <= number <= most:
            no_limit = ", or null for no limit" if name == "tokens" else ""
            raise ValueError(f"{what}: {name} is a number from {least} to {most}{no_limit}, not {number!r}")
    if limits.over not in _POLICIES:
        raise ValueError(f"{what}: over is {' or '.join(_POLICIES)}, not {limits.over!r}")
    return limits
