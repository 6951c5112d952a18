"""Values in words, and names that would harm a terminal."""

import json
import os
import time
from datetime import UTC, datetime

import pytest

from gpu_train_cli import text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("checkpoint-500", "checkpoint-500"),
        ("a b", "a b"),
        ("größe-重み", "größe-重み"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        (os.fsdecode(b"bad-\xff\xfe"), "bad-\\xff\\xfe"),
        ("\ud800", "\\ud800"),
        ("\x07\x00", "\\x07\\x00"),
    ],
)
def test_printable_shows_what_would_act(raw: str, shown: str) -> None:
    assert text.printable(raw) == shown
    assert text.printable(raw).isprintable()


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (123 * 1024**2, "123 MiB"),
        (1024**3, "1.00 GiB"),
        (3 * 1024**6, "3072 PiB"),
    ],
)
def test_size(size_bytes: int | None, shown: str) -> None:
    assert text.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (0.44, "0.4s"), (59, "59s"), (59.7, "1m 00s"), (185, "3m 05s"),
        (7800, "2h 10m"), (3 * 86400 + 4 * 3600, "3d 4h"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_times_are_local_with_their_zone_for_people_and_utc_for_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    text._zone.cache_clear()  # what another test of this process asked for was in its zone
    try:
        moment = text.moment(1_700_000_000_123_456_789)
        assert moment == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
        assert text.local(moment) == "2023-11-15 00:13:20 XYZ"
        assert text.machine(moment) == "2023-11-14T22:13:20.123456Z"
    finally:
        monkeypatch.undo()
        time.tzset()
        text._zone.cache_clear()


def test_json_is_valid_whatever_a_metric_or_a_name_holds() -> None:
    row = {"loss": float("nan"), "inf": float("-inf"), "name": os.fsdecode(b"\xff"), "n": 2**63}
    read = json.loads(text.as_json(row))
    assert read == {"loss": "nan", "inf": "-inf", "name": "\udcff", "n": 2**63}
    assert text.as_json(row).isascii()


def test_plain_words_every_kind_of_value() -> None:
    assert text.plain(None) == "-"
    assert text.plain(True) == "yes"
    assert text.plain(0.000123456789) == "0.000123457"
    assert text.plain({"loss": 1.5, "note": "a\nb"}) == "loss=1.5 note=a\\nb"
    assert text.plain(["a", "b"]) == "a, b"
    assert text.plain([]) == "-"
    assert text.count(1, "file") == "1 file"
    assert text.count(12345, "file") == "12,345 files"
