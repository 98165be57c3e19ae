"""The tracer of a server role: the SDK is the operator's, and so are its variables.

This module imports OpenTelemetry only if the variables ask for traces.
"""

import os
from typing import TYPE_CHECKING

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.telemetry.span_names import SCOPE

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def role_tracer(role: str, instance: str | None = None) -> "Tracer | None":
    """Return the tracer of this process's role; None unless `OTEL_TRACES_EXPORTER` asks for traces.

    The first call has the SDK configure itself from the standard `OTEL_*` variables, unless the
    program has set a tracer provider. Spans are flushed when the process exits. Raises
    `SettingsError` if the SDK or an exporter is not installed.
    """
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "none").strip().lower()
    if exporter in ("", "none") or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry import trace

        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            _configure_sdk(role, instance)
    except (ImportError, RuntimeError) as error:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER is {exporter}, but OpenTelemetry cannot be set up: {error}. Install "
            "opentelemetry-sdk and the exporter, such as opentelemetry-exporter-otlp, or unset the variable"
        ) from None
    return trace.get_tracer(SCOPE)


def _configure_sdk(role: str, instance: str | None) -> None:
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator

    class RoleConfigurator(_OTelSDKConfigurator):  # as the SDK asks of those who configure it
        pass

    named = {} if instance is None else {"service.instance.id": instance}
    if "OTEL_SERVICE_NAME" not in os.environ:
        named["service.name"] = f"{SCOPE}-{role.replace(' ', '-')}"
    RoleConfigurator().configure(resource_attributes=named)  # type: ignore[no-untyped-call]
