"""`[retention]`: what is kept of a job's checkpoints, as it is set for all jobs, a project or one job.

Light: the settings import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NewType, Self

from gpu_train.duration import duration_text, parse_duration

MODES = ("min", "max")
Seconds = NewType("Seconds", float)
Count = NewType("Count", int)
Plain = NewType("Plain", str)
KEEP, LATEST, NONE = Plain("keep"), Plain("latest"), Plain("none")


class Best(NamedTuple):
    """Keep the `n` best by a metric; `mode` is "min", "max", or "" to go by the metric's name."""

    metric: str
    n: int = 1
    mode: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `METRIC[:N[:min|max]]`.

        Raises:
            ValueError: saying what is expected.
        """
        rest, _, mode = text.rpartition(":") if text.endswith((":min", ":max")) else (text, "", "")
        metric, colon, digits = rest.rpartition(":")
        if not (colon and digits.isascii() and digits.isdecimal()):
            metric, digits = rest, "1"
        return cls.of({"metric": metric, "n": int(digits), "mode": mode})

    @classmethod
    def of(cls, value: Any) -> Self:
        """From a table of a settings file, or its text.

        Raises:
            ValueError: saying what is expected.
        """
        if isinstance(value, str):
            return cls.parse(value)
        given = dict(value) if isinstance(value, Mapping) else {}
        metric, n, mode = given.pop("metric", ""), given.pop("n", 1), given.pop("mode", "")
        whole = isinstance(n, int) and not isinstance(n, bool) and n >= 1
        if given or not (isinstance(metric, str) and metric and whole and mode in ("", *MODES)):
            raise ValueError('{metric = "eval_loss", n = 2} is expected, with mode = "min" or "max" if wanted')
        return cls(metric, n, mode)

    def __str__(self) -> str:
        return f"{self.metric}:{self.n}" + (f":{self.mode}" if self.mode else "")


class Retention(NamedTuple):
    """`[retention]`: a checkpoint is kept when any of these keeps it. Without any all are.

    Attributes:
        latest: keep the last so many; 0 for none.
        best: keep the best by a metric: {metric, n, mode}, or a list of such.
        every_steps: keep those at multiples of so many steps; 0 for none.
        every_seconds: keep one in so much time; 0 for none.
        latest_duration: keep those of so much time before the newest; 0 for none.
        incomplete: also drop incomplete ones, once a whole one was stored after them.
    """

    latest: Count = Count(0)
    best: tuple[Best, ...] = ()
    every_steps: Count = Count(0)
    every_seconds: Seconds = Seconds(0.0)
    latest_duration: Seconds = Seconds(0.0)
    incomplete: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether no policy is set."""
        return not (self.latest or self.best or self.every_steps or self.every_seconds or self.latest_duration)

    def __str__(self) -> str:
        words = [f"latest {self.latest}"] * bool(self.latest)
        words += [f"best {best}" for best in self.best]
        words += [f"every {self.every_steps} steps"] * bool(self.every_steps)
        words += [f"one in {duration_text(self.every_seconds)}"] * bool(self.every_seconds)
        words += [f"the last {duration_text(self.latest_duration)}"] * bool(self.latest_duration)
        return ", ".join(words) or "all"

    def to_row(self) -> dict[str, Any]:
        """As msgpack and JSON types: what is set, and nothing else."""
        row = self._asdict() | {"best": [best._asdict() for best in self.best]}
        return {name: value for name, value in row.items() if value}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row back; fields that this version does not know are left aside."""
        given = {name: value for name, value in row.items() if name in cls._fields}
        return cls(**given | {"best": tuple(Best.of(b) for b in row.get("best", ()))})


def bests_of(value: Any) -> tuple[Best, ...]:
    """The setting `best`: one table or text, or several. A text may hold several, with commas between.

    Raises:
        ValueError: saying what is expected.
    """
    if isinstance(value, str):
        return tuple(Best.parse(part) for part in value.split(",") if part)
    if isinstance(value, Best):
        return (value,)
    if isinstance(value, Sequence):
        return tuple(v if isinstance(v, Best) else Best.of(v) for v in value)
    return (Best.of(value),)


def seconds_of(value: Any) -> Seconds:
    """A setting that is a span of time: a number of seconds, or a text such as "2d".

    Raises:
        ValueError: saying what is expected.
    """
    if isinstance(value, str):
        return Seconds(parse_duration(value))
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return Seconds(float(value))
    raise ValueError('a number of seconds or a text such as "2d" is expected')


def count_of(value: Any) -> Count:
    """A setting that counts: a whole number, not negative, or its text.

    Raises:
        ValueError: saying what is expected.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return Count(int(value))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Count(value)
    raise ValueError("a whole number is expected, 0 or more")


def plain_of(value: Any) -> Plain:
    """The setting of what plain files stay: "keep", "latest" or "none".

    Raises:
        ValueError: saying what is expected.
    """
    if value not in (KEEP, LATEST, NONE):
        raise ValueError(f'"keep", "latest" or "none" is expected, this is {value!r}')
    return Plain(value)
