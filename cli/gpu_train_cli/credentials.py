"""`gpu-train credentials`: secrets for sinks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train.credentials.credential import TYPES, Wanted, type_of
from gpu_train_cas.errors import UsageError
from gpu_train_cli.command import Group
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading
from gpu_train_cli.text import local, moment

if TYPE_CHECKING:
    from gpu_train.credentials.credential import Credential
    from gpu_train.credentials.local import Entry, LocalCredentials
    from gpu_train.credentials.reference import Reference
    from gpu_train.credentials.secret import Secret
    from gpu_train.sinks.setting import SinkSetting

NO_CREDENTIALS = (
    "no credentials yet: `gpu-train credentials add NAME` asks for some; without, each sink's library looks for its own"
)


@click.group("credentials", cls=Group, default="list")
def credentials() -> None:
    """Keep secrets for sinks: add, list, test and remove them.

    A sink uses what its own secret_ref or token_ref leads to; else what a table [[credentials]] of the settings says;
    else what was added here; else what its library finds by itself. All are read afresh at each attempt.
    """


@credentials.command("add", exits=[5])
@click.argument("name", metavar="NAME|SINK|URL")
@click.option("--type", "kind", type=click.Choice(TYPES), help="For which kind of sink. [default: by the sink or URL]")
@click.option("--ref", metavar="REF", help="Store where the secret is, not the secret.")
@click.argument("more", nargs=-1, metavar="", type=click.UNPROCESSED)
@reading
@pass_invocation
def add(
    invocation: Invocation, name: str, kind: str | None, ref: str | None, more: tuple[str, ...], output: Output
) -> None:
    """Store a secret for a sink, in place of the one that was stored for it.

    NAME is a sink's name, its address or the beginning of one (s3://bucket), or s3, gcs or hf for all sinks of that
    type. The secret is asked for without showing it, or read from stdin when that is no terminal: a token, lines
    like aws_access_key_id=..., or JSON. It is kept in the system's keyring where there is one, else in the file
    credentials.json of the home, which only you may read. REF is env://NAME, file:///PATH, keyring://SERVICE/USER
    or cmd://COMMAND.
    """
    if more:  # click would repeat it
        raise UsageError(
            "a secret is not taken from the command line, where others see it; it is asked for, or piped in"
        )
    kind = kind or type_of(name) or (name if name in TYPES else None) or _type_of_sink(name, invocation)
    if kind is None:
        raise UsageError(f"{name}: say for which kind of sink with --type {'|'.join(TYPES)}")
    secret = _asked_for(kind) if ref is None else _parsed(ref)
    store = _store(invocation)
    entry = store.add(name, kind, secret)
    output.details(Details(_stored(entry), name, [("name", name), ("type", kind), ("from", _where(entry))]))


@credentials.command("list")
@reading
@pass_invocation
def list_credentials(invocation: Invocation, output: Output) -> None:
    """List the credentials of the settings and those that were added; never a secret."""
    config = gpu_train.Config.load(gpu_train.Home.locate(invocation.home))
    rows = [_set(credential, config) for credential in config.credentials]
    rows += [_stored(entry) for entry in _store(invocation).entries()]
    columns = [
        Column("name", "NAME", wrap=True),
        Column("type", "TYPE"),
        Column("from", "SECRET FROM", wrap=True),
        Column("sinks", "FOR", ", ".join, wrap=True),
        Column("origin", "ORIGIN", wrap=True),
    ]
    output.listing(Listing("credentials", columns, rows, lambda row: str(row["name"]), NO_CREDENTIALS))


@credentials.command("rm", exits=[3, 5])
@click.argument("name", metavar="NAME|SINK|URL")
@pass_invocation
def remove(invocation: Invocation, name: str) -> None:
    """Forget what was added under NAME, in the keyring too."""
    entry = _store(invocation).remove(name)
    note(f"{entry.name} is forgotten; a secret that may have leaked has to be revoked where it was issued")


@credentials.command("test", exits=[3, 5])
@click.argument("sink", metavar="NAME|SINK|URL")
@click.option(
    "--type", "kind", type=click.Choice(TYPES), help="Of which kind that sink is. [default: by the sink or URL]"
)
@reading
@pass_invocation
def test(invocation: Invocation, sink: str, kind: str | None, output: Output) -> None:
    """Find and read the credentials of a sink as an upload would, and say which fields there are.

    Whether the other side accepts them is not asked.
    """
    from gpu_train.credentials.chain import Chain  # noqa: PLC0415  reads secrets, which help and list do not

    wanted = _wanted(sink, kind, invocation)
    found = Chain.load(gpu_train.Home.locate(invocation.home)).find(wanted)
    kind = wanted.kind
    fields = list(found.fields)
    lines = [("sink", sink), ("type", kind), ("from", found.origin), ("fields", ", ".join(fields) or "none")]
    output.details(Details({"sink": sink, "type": kind, "from": found.origin, "fields": fields}, sink, lines))


def _store(invocation: Invocation) -> LocalCredentials:
    from gpu_train.credentials.local import LocalCredentials  # noqa: PLC0415  help needs no store

    return LocalCredentials(gpu_train.Home.locate(invocation.home))


def _wanted(sink: str, kind: str | None, invocation: Invocation) -> Wanted:
    """The sink that a person means: one of the settings by its name or address, or any address, name or type."""
    for setting in _sinks(invocation):
        if sink in (setting.name, setting.address):
            return Wanted(setting.address, setting.type, setting.name, setting.secret_ref or setting.token_ref or None)
    kind = kind or type_of(sink) or (sink if sink in TYPES else None) or _type_known(sink, invocation)
    return Wanted(sink if "://" in sink else f"{kind}://", kind, sink)


def _type_of_sink(name: str, invocation: Invocation) -> str | None:
    return next((one.type for one in _sinks(invocation) if one.name == name and one.type in TYPES), None)


def _type_known(name: str, invocation: Invocation) -> str:
    """The type of the credentials that are known under a name."""
    config = gpu_train.Config.load(gpu_train.Home.locate(invocation.home))
    for credential in config.credentials:
        if name == credential.name or name in credential.sinks:
            return credential.type
    return _store(invocation).get(name).type


def _sinks(invocation: Invocation) -> tuple[SinkSetting, ...]:
    sinks = gpu_train.Config.load(gpu_train.Home.locate(invocation.home)).sinks
    return (*sinks.checkpoints, *sinks.logs)


def _parsed(text: str) -> Reference:
    from gpu_train.credentials.reference import Reference  # noqa: PLC0415

    try:
        return Reference.parse(text)
    except ValueError as e:
        raise UsageError(f"--ref: {e}") from None


def _asked_for(kind: str) -> Secret:
    """The secret, from stdin or by asking; refused when it does not say what that type needs."""
    from gpu_train.credentials.fields import fields_of  # noqa: PLC0415
    from gpu_train.credentials.secret import Secret  # noqa: PLC0415

    if not sys.stdin.isatty():
        text = sys.stdin.read()
    elif kind == "s3":
        asked = {
            "aws_access_key_id": _ask("AWS access key id"),
            "aws_secret_access_key": _ask("AWS secret access key"),
            "aws_session_token": _ask("AWS session token (empty: none)"),
        }
        text = "\n".join(f"{name}={value}" for name, value in asked.items() if value)
    else:
        text = _ask("Token" if kind == "hf" else "Access token")
    secret = Secret(text.strip())
    if not secret:
        raise UsageError("no secret was given")
    fields_of(secret, kind, "what was given")
    return secret


def _ask(what: str) -> str:
    answer = click.prompt(what, default="", show_default=False, hide_input=True, err=True)
    assert isinstance(answer, str)
    return answer.strip()


def _where(entry: Entry) -> str:
    return str(entry.reference or {"file": "credentials.json", "keyring": "the system's keyring"}[entry.where])


def _stored(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "type": entry.type,
        "from": _where(entry),
        "sinks": [entry.name],
        "origin": f"added {local(moment(entry.added_ns))}",
        "added_at": moment(entry.added_ns),
    }


def _set(credential: Credential, config: gpu_train.Config) -> dict[str, object]:
    return {
        "name": credential.name,
        "type": credential.type,
        "from": str(credential.reference),
        "sinks": list(credential.sinks) or [credential.type],
        "origin": config.origin(f"credentials.{credential.name}"),
        "added_at": None,
    }
