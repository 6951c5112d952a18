"""The options that say what to keep of a job's checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpu_train.retention.setting import Best, Retention, count_of, seconds_of
from gpu_train_cli.duration import DURATION

F = TypeVar("F", bound=Callable[..., Any])


class _Best(click.ParamType[Best]):
    name = "best"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Best:
        try:
            return value if isinstance(value, Best) else Best.parse(str(value))
        except ValueError:
            self.fail(f"{value!r} is not METRIC[:N[:min|max]], such as eval_loss:2", param, ctx)


_OPTIONS = (
    click.option("--keep-latest", type=click.IntRange(min=1), metavar="N", help="Keep the last N."),
    click.option(
        "--keep-best",
        type=_Best(),
        multiple=True,
        metavar="METRIC[:N[:min|max]]",
        help="Keep the N (1) best by a metric. May be repeated.",
    ),
    click.option(
        "--keep-every-steps", type=click.IntRange(min=1), metavar="N", help="Keep those at multiples of N steps."
    ),
    click.option("--keep-every-seconds", type=DURATION, metavar="T", help="Keep one in so much time (3600, 90m, 2h)."),
    click.option(
        "--keep-latest-duration",
        type=DURATION,
        metavar="T",
        help="Keep those made within so much time of the newest (2d).",
    ),
)


def retention_options(command: F) -> F:
    """Give a command the `--keep-...` options; it receives them as `retention`, None when there are none."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        keep_latest: int | None,
        keep_best: tuple[Best, ...],
        keep_every_steps: int | None,
        keep_every_seconds: float | None,
        keep_latest_duration: float | None,
        **kwargs: Any,
    ) -> Any:
        said = Retention(
            count_of(keep_latest or 0),
            keep_best,
            count_of(keep_every_steps or 0),
            seconds_of(keep_every_seconds or 0.0),
            seconds_of(keep_latest_duration or 0.0),
        )
        return command(*args, retention=None if said.keeps_all else said, **kwargs)

    decorated: Any = wrapper
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click reads the options from the wrapper, the signature is F's
