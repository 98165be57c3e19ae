"""The callers of the control API: their tokens, and the form in which tokens are given.

A JSON object maps each token to the name of a tenant, or to an object:

    {"<token 1>": "acme",
     "<token 2>": {"tenant": "acme", "principal": "alice", "roles": ["reader", "operator"]},
     "<token 3>": {"principal": "on-call", "roles": ["operator"]},
     "<token 4>": {"tenant": "acme", "user": "ann", "principal": "app of ann"}}

Pure. No error repeats a part of the input: by mistake, a token may be anywhere in it.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sessionary.schemas.ids import NAME_LENGTH_MAX, valid_name
from sessionary.schemas.limits import NAME_CHARACTERS_MAX

Role = Literal["reader", "operator"]

_ERRORS_MAX: Final = 5
_FORM: Final = "must be a JSON object {token: tenant} or {token: {tenant, user, principal, roles}}"
# The rule for each field. The words of pydantic's own errors would not help, and may name a key.
_FIELDS: Final = {
    "tenant": f"tenant must be null, or 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' or '-', "
    "a letter or digit first",
    "user": f"user must be null, or a text of 1 to {NAME_CHARACTERS_MAX} characters",
    "principal": f"principal must be a text of 1 to {NAME_LENGTH_MAX} printable characters",
    "roles": 'roles must be a list of "reader" and "operator", and not empty',
}


def _check_tenant(name: str) -> str:
    if not valid_name(name):
        raise ValueError
    return name


def _check_printable(text: str) -> str:
    if not text.isprintable() or text.strip() != text:
        raise ValueError
    return text


class Caller(BaseModel):
    """The caller that a token stands for: its name, its tenant and its roles.

    A `reader` reads the sessions of its tenant. An `operator` runs commands on the whole pipeline,
    and needs no tenant. `principal` is the caller's name in logs, by default the tenant's.

    With a `user`, both roles reach only the sessions, runs and tasks of this user, a `user_id` of
    the tenant; others are unknown, and so are those without a user. Such an operator runs no
    commands on the pipeline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: Annotated[str, AfterValidator(_check_tenant)] | None = None
    user: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)] | None = None
    principal: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH_MAX), AfterValidator(_check_printable)]
    roles: Annotated[frozenset[Role], Field(min_length=1)] = frozenset({"reader"})

    @model_validator(mode="before")
    @classmethod
    def _name_principal(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "principal" not in fields and fields.get("tenant") is not None:
            return {**fields, "principal": fields["tenant"]}
        return fields

    @model_validator(mode="after")
    def _check_reader(self) -> Self:
        if self.tenant is None and ("reader" in self.roles or self.user is not None):
            raise ValueError
        return self

    def may_see(self, user_id: str | None) -> bool:
        """Return whether the caller may know of what belongs to a user of its tenant."""
        return self.user in (None, user_id)


def parse_tokens(source: object) -> dict[str, Caller]:
    """Return the callers by token, from JSON text or from its decoded value.

    Raises `ValueError` that names wrong tokens by their place, from 1, without repeating them.
    """
    found = _parse_json(source) if isinstance(source, str | bytes) else source
    if not isinstance(found, Mapping):
        raise ValueError(_FORM)
    tokens: dict[str, Caller] = {}
    errors: list[str] = []
    for place, (token, value) in enumerate(found.items(), 1):
        try:
            tokens[_check_token(token)] = value if isinstance(value, Caller) else _parse_caller(value)
        except ValueError as error:
            errors.append(f"token {place}: {error}")
    if errors:
        more = f"; and {len(errors) - _ERRORS_MAX} more" if len(errors) > _ERRORS_MAX else ""
        raise ValueError("; ".join(errors[:_ERRORS_MAX]) + more)
    return tokens


def _parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object_without_duplicates)
    except _DuplicateKey as error:
        raise ValueError(str(error)) from None
    except (ValueError, RecursionError):
        raise ValueError(_FORM) from None


class _DuplicateKey(Exception):
    """An object has a key twice; JSON readers would drop the first one silently."""


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: set[str] = set()
    for place, (key, _) in enumerate(pairs, 1):
        if key in keys:
            raise _DuplicateKey(f"entry {place} of an object has the same key as an earlier one")
        keys.add(key)
    return dict(pairs)


def _check_token(token: object) -> str:
    if not isinstance(token, str) or not token or not token.isprintable() or token.strip() != token:
        raise ValueError("a token must not be empty, and have no control characters and no spaces around it")
    return token


def _parse_caller(value: object) -> Caller:
    if not isinstance(value, str | dict):
        raise ValueError("must be the name of a tenant, or an object of tenant, user, principal and roles")
    fields = {"tenant": value} if isinstance(value, str) else value
    try:
        return Caller.model_validate(fields)
    except ValidationError as error:
        kinds = {fault["loc"][0] if fault["loc"] else "": fault["type"] for fault in error.errors(include_input=False)}
    if "tenant" in kinds and "principal" not in fields:
        kinds.pop("principal", None)  # by default it is the tenant, whose fault is reported already
    raise ValueError("; ".join(sorted({_fault_text(str(field), kind) for field, kind in kinds.items()})))


def _fault_text(field: str, kind: str) -> str:
    if kind == "extra_forbidden":
        return "has a field other than tenant, user, principal and roles"
    if kind == "missing":
        return "principal is missing; only a token with a tenant has one by default"
    return _FIELDS.get(field, 'role reader needs a tenant, and so does a user; add one, or "roles": ["operator"]')
