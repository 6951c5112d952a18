"""Options that take a span of time."""

from __future__ import annotations

import click

from gpu_train.duration import parse_duration


class Duration(click.ParamType[float]):
    """`90`, `90s`, `15m`, `2h`, `7d` as seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds, or a usage error that says what is expected."""
        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as e:
            self.fail(str(e), param, ctx)


DURATION = Duration()
