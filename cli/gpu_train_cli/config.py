"""`gpu-train config`: the settings in force."""

from __future__ import annotations

import click

import gpu_train
from gpu_train_cli.command import Group
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, reading


@click.group("config", cls=Group, default="show")
def config() -> None:
    """Show the settings and where each came from."""


@config.command("show")
@click.option("--origin", is_flag=True, help="Say where each setting came from.")
@reading
@pass_invocation
def show(invocation: Invocation, origin: bool, output: Output) -> None:
    """Show every setting.

    Weakest first, a setting comes from: the built-in default, config.toml in the home, the gpu-train.toml
    found upward from here, the environment (GPU_TRAIN_DEFAULTS_TRASH_DAYS is defaults.trash_days).
    """
    home = gpu_train.Home.locate(invocation.home)
    settings = gpu_train.Config.load(home).settings()
    rows = [{"setting": setting.key, "value": setting.value, "origin": setting.origin} for setting in settings]
    columns = [Column("setting", "SETTING"), Column("value", "VALUE", wrap=True)]
    if origin:
        columns.append(Column("origin", "ORIGIN"))
    output.listing(
        Listing("settings", columns, rows, lambda row: str(row["setting"]), "no settings", {"home": home.root})
    )
