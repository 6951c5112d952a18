"""Pictures of numbers: curves and bars in a terminal, curves in a PNG file.

What draws is loaded when there is something to draw. All of it is text without colours, for any width from 40 columns
on; where nobody tells the width, as in a pipe, it is 80.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpu_train.tables.checkpoint import mode_of
from gpu_train_cas.errors import UsageError, mapped_os_errors
from gpu_train_cli.text import printable

if TYPE_CHECKING:
    from gpu_train import Metric

HEIGHT = 12
NARROWEST, WIDEST = 40, 120
LABEL = 24
POINTS = 2_000
"""A curve of more points is drawn by the lowest and highest of each stretch: no terminal shows more."""

MAIN = ("loss", "train_loss", "eval_loss", "val_loss")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PNG_INCHES = (8.0, 3.0)


class Curve(NamedTuple):
    """The finite values of one metric, by step where all its reports have one, else in the order of reports."""

    name: str
    axis: str
    xs: Sequence[float]
    ys: Sequence[float]

    @property
    def best(self) -> tuple[float, float]:
        """Where the best value is, and the value: the last of equals. Most metrics are better when they are less."""
        sign = -1 if mode_of(self.name) == "max" else 1
        at = min(range(len(self.ys)), key=lambda i: (sign * self.ys[i], -i))
        return self.xs[at], self.ys[at]


def curves_of(reports: Iterable[Metric]) -> list[Curve]:
    """A curve for each metric that has a finite value, the usual losses first; of a step reported again the last."""
    points: dict[str, list[tuple[int | None, float]]] = {}
    for report in reports:
        for name, value in report.values.items():
            if math.isfinite(value):
                points.setdefault(name, []).append((report.step, value))
    names = sorted(points, key=lambda name: MAIN.index(name) if name in MAIN else len(MAIN))
    return [_curve(name, points[name]) for name in names]


def _curve(name: str, points: Sequence[tuple[int | None, float]]) -> Curve:
    steps = {step: value for step, value in points if step is not None}
    if all(step is not None for step, _ in points):
        xs = sorted(steps)
        return Curve(name, "step", xs, [steps[x] for x in xs])
    return Curve(name, "report", range(1, len(points) + 1), [value for _, value in points])


def width() -> int:
    """Columns to draw in."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)


def drawn(curve: Curve, height: int = HEIGHT) -> str:
    """A curve as lines of text, its axes labelled; no line is wider than `width`."""
    if not _can_show("⣿┤"):
        return "(no curve: the encoding of the output has no such characters; PYTHONIOENCODING=utf-8 does)"
    import plotext  # noqa: PLC0415  45 ms that only a drawing pays

    xs, ys = _thinned(curve.xs, curve.ys)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width(), height)
    plotext.plot(xs, ys, marker="braille")
    plotext.title(printable(f"{curve.name} by {curve.axis}"))
    lines = plotext.uncolorize(plotext.build()).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    if len(xs) <= POINTS:
        return list(xs), list(ys)
    stretch = -(-2 * len(xs) // POINTS)
    kept: list[int] = []
    for start in range(0, len(xs), stretch):
        part = range(start, min(start + stretch, len(xs)))
        kept += sorted({min(part, key=ys.__getitem__), max(part, key=ys.__getitem__)})
    return [xs[i] for i in kept], [ys[i] for i in kept]


def bars(shares: Mapping[str, float], texts: Mapping[str, str]) -> str:
    """Bars as long as their values, beside their names and what `texts` says of each."""
    if not shares:
        return ""
    label = min(max(map(len, shares)), LABEL)
    tail = max((len(text) for text in texts.values()), default=0)
    room = max(width() - label - tail - 4, 4)
    largest = max(shares.values()) or 1
    return "\n".join(
        f"{printable(name)[:label]:<{label}}  {texts.get(name, ''):>{tail}}  {_bar(value / largest * room)}".rstrip()
        for name, value in shares.items()
    )


def _bar(length: float) -> str:
    if not _can_show("█▏"):
        return "#" * round(length)
    whole, part = divmod(round(length * 8), 8)
    return "█" * whole + _EIGHTHS[part].strip()


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def save_png(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Write all curves below each other into a PNG file; one that is there is replaced at once or not at all.

    Raises:
        UsageError: where matplotlib is not installed.
        GpuTrainError: when the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  large, and needed for this alone
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as e:
        raise UsageError("a PNG needs matplotlib: pip install 'gpu-train[plot]'") from e
    figure = Figure(figsize=(_PNG_INCHES[0], _PNG_INCHES[1] * len(curves)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_literal(title))
    for place, curve in enumerate(curves, 1):
        axes = figure.add_subplot(len(curves), 1, place)
        axes.plot(curve.xs, curve.ys)
        axes.set_ylabel(_literal(curve.name))
        axes.set_xlabel(curve.axis)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with mapped_os_errors(f"writing {path}"):
        try:
            figure.savefig(temporary, format="png")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _literal(text: str) -> str:
    return printable(text).replace("$", r"\$")  # what is between two of them would be set as mathematics
