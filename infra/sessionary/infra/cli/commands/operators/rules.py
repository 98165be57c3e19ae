"""`sessionary rules`: the rules that judge partitions, and the activation of newer ones."""

from collections.abc import Mapping
from typing import Annotated

import typer

from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption, control_api_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.limits import FINISHED_RUN_DAYS_MAX, RESUME_MS_MAX
from sessionary.schemas.rules import NEWEST_RULES

SessionQuotasOption = Annotated[
    bool,
    typer.Option(
        "--session-quotas",
        help="Let new sessions request a slot of their tenant's quota. Default: unchanged (no at first).",
    ),
]
TokenQuotasOption = Annotated[
    bool,
    typer.Option(
        "--token-quotas",
        help="Count used tokens against the quotas that runs or sessions request. Default: unchanged (no at first).",
    ),
]
_COLUMNS = (
    "partition",
    "state",
    "instance",
    "rules",
    "finished_run_days",
    "quotas",
    "session_quotas",
    "resume_ms",
    "token_quotas",
    "announced",
    "principal",
    "detail",
)


def list_rules(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the rules in force in every partition, and the rules that the workers know.

    Needs SESSIONARY_CONTROL_URL and SESSIONARY_OPERATOR_TOKEN; a local stack has both.
    """
    _show_listing(control_api_client(data).list_rules(), as_json=as_json)


def activate_rules(
    version: Annotated[
        int, typer.Option("--version", min=1, help="Default: the newest version of this release.")
    ] = NEWEST_RULES.version,
    finished_run_days: Annotated[
        int | None,
        typer.Option(
            "--finished-run-days",
            min=1,
            max=FINISHED_RUN_DAYS_MAX,
            help="Days for which a run that begins now can be read after its end. Default: unchanged (30 at first).",
        ),
    ] = None,
    resume_ms: Annotated[
        int | None,
        typer.Option(
            "--resume-ms",
            min=1,
            max=RESUME_MS_MAX,
            help="Time for which a failed run may be resumed, as long as it can be read. Default: unchanged "
            "(a day at first).",
        ),
    ] = None,
    quotas: Annotated[
        bool,
        typer.Option(
            "--quotas",
            help="Let new runs request a slot of their tenant's quota. Default: unchanged (no at first).",
        ),
    ] = False,
    no_quotas: Annotated[bool, typer.Option("--no-quotas", help="Let runs request no more slots.")] = False,
    session_quotas: SessionQuotasOption = False,
    no_session_quotas: Annotated[bool, typer.Option("--no-session-quotas", help="Let sessions request none.")] = False,
    token_quotas: TokenQuotasOption = False,
    no_token_quotas: Annotated[bool, typer.Option("--no-token-quotas", help="Count tokens no more.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Activate newer rules in all partitions, once every processor is upgraded. Irreversible.

    The command is refused while a processor of the group does not know the rules; with --quotas,
    --session-quotas or --token-quotas, also while no worker of the role quotas runs. The command
    may be repeated, also to change a setting of the rules in force. The exit code is 1 if the rules
    are not in force everywhere after some seconds.
    """
    asked = {
        "quotas": _wanted("quotas", yes=quotas, no=no_quotas),
        "session_quotas": _wanted("session-quotas", yes=session_quotas, no=no_session_quotas),
        "token_quotas": _wanted("token-quotas", yes=token_quotas, no=no_token_quotas),
    }
    listing = control_api_client(data).activate_rules(version, finished_run_days, resume_ms=resume_ms, **asked)
    _show_listing(listing, as_json=as_json)
    waiting = [
        str(found["partition"])
        for found in listing["partitions"]
        if (found["rules"] or 0) < version
        or finished_run_days not in (None, found["finished_run_days"])
        or resume_ms not in (None, found.get("resume_ms"))
        or any(value not in (None, found.get(name)) for name, value in asked.items())
    ]
    if waiting:
        raise CheckFailed(
            f"rules {version} are not in force yet in partition {', '.join(waiting)}: look again with sessionary rules "
            "list, and repeat this command if they are not announced there"
        )


def _wanted(name: str, *, yes: bool, no: bool) -> bool | None:
    """Return the choice of a pair of options; None: neither was given."""
    if yes and no:
        raise SettingsError(f"--{name} and --no-{name} contradict each other: give one of them")
    return yes if yes or no else None


def _show_listing(listing: Mapping[str, Json], *, as_json: bool) -> None:
    if wants_json(as_json):
        show_object(listing, as_json=True)
        return
    show_rows(listing["partitions"], as_json=False, columns=_COLUMNS)
    for worker in listing["workers"]:
        known = worker["detail"] or f"knows rules {worker['newest']}"
        print_message(f"worker {worker['instance'] or worker['url']}: {known}")
    if (quota_workers := listing.get("quota_workers")) is not None:
        print_message(f"workers of the role quotas: {quota_workers}")
