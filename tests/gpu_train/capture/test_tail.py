from __future__ import annotations

import json
from pathlib import Path

from gpu_train.capture import tail
from gpu_train.capture.tail import Tail


def test_only_whole_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    reader = Tail(path)
    assert list(reader.read()) == []
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert list(reader.read()) == [({"a": 1}, 9)]
    assert list(reader.read()) == []
    with path.open("ab") as file:
        file.write(b': 2}\n{"c": 3}\n')
    assert [v for v, _ in reader.read()] == [{"b": 2}, {"c": 3}]
    assert [v for v, _ in Tail(path, 9).read()] == [{"b": 2}, {"c": 3}]


def test_lines_that_are_no_maps_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'nothing\n[1]\n\xff\xfe\n\n{"a": 1}\n' + b"[" * 100_000 + b'\n{"b": 2}\n')
    reader = Tail(path)
    assert [v for v, _ in reader.read()] == [{"a": 1}, {"b": 2}]
    assert reader.bad_lines == 5


def test_a_line_beyond_all_measure_is_passed_over(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tail, "LINE_LIMIT_BYTES", 100)
    monkeypatch.setattr(tail, "CHUNK_BYTES", 10)
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"a": "x" * 1000}) + '\n{"b": 2}\n')
    assert [v for v, _ in Tail(path).read()] == [{"b": 2}]


def test_stopping_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    reader = Tail(path)
    assert next(reader.read())[0] == {"a": 1}
    assert next(reader.read())[0] == {"b": 2}
