"""`gpu-train checkpoints keep|unkeep|tag`: what people note about checkpoints."""

from __future__ import annotations

import click

from gpu_train_cli.checkpoint_removal import show_changed
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Output, note, reading
from gpu_train_cli.text import count


@click.command("keep", cls=Command, exits=[3, 4])
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@reading
@pass_invocation
def keep(invocation: Invocation, refs: tuple[str, ...], output: Output) -> None:
    """Forbid that checkpoints are removed, by a policy or by a command, until `unkeep`."""
    _mark(invocation, refs, output, kept=True)


@click.command("unkeep", cls=Command, exits=[3, 4])
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@reading
@pass_invocation
def unkeep(invocation: Invocation, refs: tuple[str, ...], output: Output) -> None:
    """Allow again that checkpoints are removed."""
    _mark(invocation, refs, output, kept=False)


def _mark(invocation: Invocation, refs: tuple[str, ...], output: Output, *, kept: bool) -> None:
    from gpu_train import marking  # noqa: PLC0415  loads the engine, which help must not
    from gpu_train.retention.removal import find  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        found = find(workspace, refs)
        changed = marking.keep(workspace, found, kept=kept)
    show_changed(changed, output, {})
    if output.for_people:
        before = len(found) - len(changed)
        said = f"{count(len(changed), 'checkpoint')} {'kept' if kept else 'not kept any more'}"
        note(said + (f"; {before} had that mark before" if before and kept else ""))


def _pairs(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not (sign and name):
            raise click.BadParameter(f"{word!r} is no tag; write NAME=VALUE, or NAME= to take it away")
        pairs[name] = value
    return pairs


@click.command("tag", cls=Command, exits=[3, 4])
@click.argument("ref")
@click.argument("tags", metavar="NAME=VALUE...", nargs=-1, required=True, callback=_pairs)
@reading
@pass_invocation
def tag(invocation: Invocation, ref: str, tags: dict[str, str], output: Output) -> None:
    """Set tags of the checkpoint REF; NAME= takes one away.

    A checkpoint with the tag deployed=yes, or any other value but no, false and 0, is not removed.
    """
    from gpu_train import marking  # noqa: PLC0415  loads the engine, which help must not
    from gpu_train.retention.removal import find  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        found = find(workspace, [ref])
        changed = marking.tag(workspace, found, tags)
    show_changed(changed, output, {})
    if output.for_people:
        [now] = changed or found
        said = ", ".join(f"{name}={value}" for name, value in sorted(now.tags.items())) or "no tags"
        note(f"{now.job_id}@{now.name}: {said}")
