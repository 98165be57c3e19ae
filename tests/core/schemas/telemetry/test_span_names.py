"""Our names of attributes are those of OpenTelemetry's conventions."""

from opentelemetry.semconv._incubating.attributes import db_attributes, gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import error_attributes

from sessionary.schemas.telemetry import span_names


def test_names_that_are_not_ours_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (db_attributes, error_attributes, gen_ai_attributes, messaging_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    operations = {span_names.SCOPE, span_names.SEND, span_names.PROCESS, span_names.STORE}
    names = {value for name, value in vars(span_names).items() if name.isupper()} - operations
    assert {name for name in names - known if not name.startswith("sessionary.")} == set()
    assert len(names & known) >= 10
