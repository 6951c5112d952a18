"""The line on stderr while bytes move."""

import io
from dataclasses import dataclass

from gpu_train_cli.progress import ERASE_LINE, Meter, progress

MIB = 1024**2


@dataclass
class Report:
    phase: str = "storing"
    done_bytes: int = 0
    total_bytes: int | None = 400 * MIB
    files_done: int = 0
    files_total: int | None = 4
    new_bytes: int = 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_has_amount_speed_time_left_and_what_was_known() -> None:
    now = iter([0.0, 1.0])
    meter = Meter(deduplicated=True, clock=lambda: next(now))
    meter.line(Report())
    line = meter.line(Report(done_bytes=100 * MIB, files_done=1, new_bytes=60 * MIB))
    assert line == ("storing: 100 MiB of 400 MiB, 1 of 4 files, 100 MiB/s, ETA 3.0s, 40.0 MiB deduplicated")


def test_the_speed_is_that_of_the_last_seconds() -> None:
    now = iter([0.0, 10.0, 12.0, 14.0])
    meter = Meter(clock=lambda: next(now))
    for done in (0, 0, 0):
        meter.line(Report(done_bytes=done))
    assert "25.0 MiB/s" in meter.line(Report(done_bytes=100 * MIB))


def test_the_next_piece_of_work_begins_anew() -> None:
    now = iter([0.0, 1.0, 2.0, 3.0])
    meter = Meter(clock=lambda: next(now))
    for done in (0, 100 * MIB):
        meter.line(Report(done_bytes=done))
    assert "/s" not in meter.line(Report(done_bytes=0))
    assert "10.0 MiB/s" in meter.line(Report(done_bytes=10 * MIB))


def test_no_total_no_promise() -> None:
    assert Meter(clock=lambda: 0.0).line(Report(total_bytes=None, files_total=None)) == "storing: 0 B"


def test_silent_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress(stream=stream) as update:
        update(Report(done_bytes=1))
    assert stream.getvalue() == ""


def test_the_line_is_taken_away_at_the_end() -> None:
    stream = Terminal()
    with progress(stream=stream) as update:
        update(Report(done_bytes=MIB))
    drawn = stream.getvalue()
    assert drawn.startswith(f"{ERASE_LINE}storing: 1.00 MiB of 400 MiB")
    assert drawn.endswith(ERASE_LINE)
