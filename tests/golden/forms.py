"""The forms that a release freezes, as flat JSON objects: one name for each thing that is promised.

schemas, rules, tables, verbs, commands, routes   follow from the code (`CODE_FORMS`)
bytes                                             follow from the examples of the tests
columns                                           are asked of the engine (`read_columns`)
"""

import enum
import inspect
import json
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args

from docs.build.commands_page import leaf_commands
from docs.build.verbs_page import Group, signature_of, verbs_of
from sessionary.schemas.codec import Event, encode_event, encode_record
from sessionary.schemas.codec.catalogue import canonical_form, current_schemas, schema_fingerprint
from sessionary.schemas.rules import known_rules
from sessionary.schemas.types import RejectionReason
from sessionary.sinks.clickhouse.migrate import shipped_migrations
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.core.session.transitions import ACCEPTED, PHASES, TRANSITIONS
from tests.support.values import as_json, every_example

Forms = dict[str, Any]

FOLDER: Final = Path(__file__).parent
# What a change of a frozen form needs instead, by kind.
NEEDS: Final[Mapping[str, str]] = {
    "schemas": "newer rules with a folder of schemas that come with them (docs/decisions/007-rules-have-versions.md)",
    "bytes": "newer rules with a folder of schemas that come with them (docs/decisions/007-rules-have-versions.md)",
    "rules": "a branch by a new version of the rules (docs/decisions/007-rules-have-versions.md)",
    "tables": "a numbered migration in sinks/clickhouse/migrations",
    "columns": "a numbered migration, or another view",
    "verbs": "a new release",
    "commands": "a new release",
    "routes": "a new release",
}
_CLIENT: Final = tuple(f"sessionary.producers{part}" for part in ("", ".artifacts", ".tasks", ".testing"))
_PROSE: Final = frozenset({"description", "summary", "example", "examples", "title"})
_NAMED: Final = frozenset({"properties", "schemas", "paths"})  # whose members have names of their own
_COMMENT: Final = re.compile(r"--.*$", re.M)


def frozen_releases() -> list[str]:
    """Return the releases that have a folder, the oldest first."""
    found = (path.parent.name for path in FOLDER.glob("*/bytes.json"))
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def read_forms(release: str, kind: str) -> Forms:
    """Return the frozen forms of a release."""
    found: Forms = json.loads((FOLDER / release / f"{kind}.json").read_text("utf-8"))
    return found


def differences(frozen: Forms, now: Forms) -> list[str]:
    """Return what was added, removed or changed, one line for each name."""
    return [
        f"{name}: {'new' if name not in frozen else 'gone' if name not in now else 'is'} "
        f"{now.get(name, '')}{f', was {frozen[name]}' if name in frozen and name in now else ''}".strip()
        for name in sorted(frozen.keys() | now.keys())
        if name not in frozen or name not in now or frozen[name] != now[name]
    ]


def what_to_do(release: str, kind: str) -> str:
    """Return the sentence for a form that is not the frozen one."""
    return (
        f"the {kind} of {release} are frozen. Undo the change; or give it what it needs, {NEEDS[kind]}, and add the "
        f"next release beside {release}: its version and heading, then `python -m tests.golden.write VERSION` "
        "(tests/golden/README.md)"
    )


def schema_forms() -> Forms:
    """Return canonical form and fingerprint of each schema, by its full name."""
    return {
        name: {"fingerprint": schema_fingerprint(schema).hex(), "form": canonical_form(schema)}
        for name, schema in current_schemas().items()
    }


def byte_forms() -> Forms:
    """Return an example of each event and record, encoded, by the name of its schema."""
    found = {}
    for value in every_example():
        encoded = encode_event(value) if isinstance(value, Event) else encode_record(value)
        name = type(value.payload if isinstance(value, Event) else value).__name__
        found[name] = {"bytes": encoded.hex(), "value": as_json(value)}
    return found


def rule_forms() -> Forms:
    """Return the versions of the rules, and what is data in the newest of them."""
    forms: Forms = {f"rules {version}": known.rules._asdict() for version, known in known_rules().items()}
    for each in TRANSITIONS:
        plain = each._asdict()
        clocks = [f"{clock.name}: {clock.reason_code}" for clock in each.clocks]
        plain |= {"reasons": list(each.reasons), "clocks": clocks, "cleanup": _plain(each.cleanup)}
        forms[f"transition {each.id} from {each.source}"] = {
            name: value for name, value in plain.items() if not callable(value)
        }
    forms |= {f"accepted in {state}": sorted(events) for state, events in ACCEPTED.items()}
    forms |= {f"phases in {state}": sorted([f"{a}", f"{b}"] for a, b in pairs) for state, pairs in PHASES.items()}
    return {**forms, "reasons of rejections": sorted(get_args(RejectionReason))}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {f"{name}": _plain(part) for name, part in value.items()}
    return list(value) if isinstance(value, tuple | frozenset) else value


def table_forms() -> Forms:
    """Return the statements of each migration, by its label and their number; without comments."""
    return {
        f"{each.label} {number}": " ".join(text.split())
        for each in shipped_migrations()
        for number, text in enumerate(each._replace(sql=_COMMENT.sub("", each.sql)).statements("DB"), 1)
    }


def verb_forms() -> Forms:
    """Return the client's public names: signatures of functions and methods, fields, bases."""
    forms: Forms = {}
    for module_name in _CLIENT:
        module = import_module(module_name)
        for name in module.__all__:
            place, found = f"{module_name.removeprefix('sessionary.')}.{name}", getattr(module, name)
            if inspect.isclass(found):
                forms[place] = _class_form(found)
                for verb in verbs_of(Group(found, place)):
                    called, bracket, parameters = verb.call.partition("(")
                    forms[called] = f"{bracket}{parameters} -> {verb.returns}"
            elif inspect.isfunction(found):
                forms[place] = signature_of(found)
            else:
                forms[place] = f"{found}"
    return forms


def _class_form(cls: type) -> Forms:
    """Return how an object is made, its fields, and the bases that are ours."""
    named = (getattr(cls, name, None) for name in ("_fields", "model_fields"))
    fields = [name for each in named if isinstance(each, tuple | dict) for name in each]
    members = [each.value for each in cls] if issubclass(cls, enum.Enum) else []
    made = next((each for each in cls.__mro__ if "__init__" in vars(each) and _is_ours(each)), None)
    return {
        "made": signature_of(vars(made)["__init__"]) if made is not None and not fields else "",
        "fields": [*fields, *members],
        "waits": sorted(name for name, value in vars(cls).items() if inspect.iscoroutinefunction(value)),
        "bases": [each.__name__ for each in cls.__mro__[1:] if _is_ours(each)],
    }


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("sessionary.")


def command_forms() -> Forms:
    """Return the arguments and options of each command, by the command."""
    return {name: [_parameter_form(each) for each in command.params] for name, command in leaf_commands().items()}


def _parameter_form(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    choices = "|".join(each.value for each in kind) if inspect.isclass(kind) and issubclass(kind, enum.Enum) else ""
    names = [parameter.metavar or parameter.name] if parameter.param_type_name == "argument" else parameter.opts
    parts = ["/".join([*names, *parameter.secondary_opts]), choices or getattr(kind, "__name__", f"{kind}")]
    parts += ["required"] if parameter.required else [f"= {parameter.default}"]
    return " ".join(parts) + (" ..." if parameter.multiple or parameter.nargs != 1 else "")


def route_forms() -> Forms:
    """Return each route of the control API and each schema of its documents, without prose."""
    paths, schemas = DOCUMENT["paths"], DOCUMENT["components"]["schemas"]
    forms = {f"{method.upper()} {path}": each for path, found in paths.items() for method, each in found.items()}
    return {name: _without_prose(each) for name, each in (forms | schemas).items()}


def _without_prose(value: Any, *, named: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _without_prose(each, named=name in _NAMED and not named)
            for name, each in value.items()
            if named or name not in _PROSE
        }
    return [_without_prose(each) for each in value] if isinstance(value, list | tuple) else value


# By kind: what the code comes to today. The columns are asked of an engine.
CODE_FORMS: Final[Mapping[str, Callable[[], Forms]]] = {
    "schemas": schema_forms,
    "bytes": byte_forms,
    "rules": rule_forms,
    "tables": table_forms,
    "verbs": verb_forms,
    "commands": command_forms,
    "routes": route_forms,
}


def without_types(forms: Forms) -> Forms:
    """Return forms as a file has them: a tuple is a list there."""
    plain: Forms = json.loads(json.dumps(forms))
    return plain
