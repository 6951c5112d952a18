"""One row, every format."""

import csv
import io
import json
import os
import sys
from datetime import UTC, datetime

import pytest

from gpu_train_cli.output import SPREAD_ROWS, Column, Details, Listing, Output
from gpu_train_cli.text import size

ROWS = [
    {
        "id": "a",
        "size_bytes": 2048,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "tags": {"k": "v"},
    },
    {"id": "b\x1b[2J\nx", "size_bytes": 5, "created_at": None, "tags": {}},
]


def listing(rows: list | None = None) -> Listing:
    return Listing(
        name="things",
        columns=[Column("id", "ID"), Column("size_bytes", "SIZE", size, right=True)],
        rows=ROWS if rows is None else rows,
        identity=lambda row: str(row["id"]),
        empty="no things yet: make one with `make thing`",
        head={"owner": "me"},
    )


def test_table_is_aligned_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    Output().listing(listing())
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "ID               SIZE",
        "a            2.00 KiB",
        "b\\x1b[2J\\nx       5 B",
    ]


def test_json_has_a_version_the_head_and_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    Output("json").listing(listing())
    read = json.loads(capsys.readouterr().out)
    assert read["schema_version"] == 1
    assert read["owner"] == "me"
    assert read["things"][0]["created_at"] == "2026-01-02T03:04:05Z"
    assert read["things"][1]["id"] == "b\x1b[2J\nx"


def test_json_of_many_rows_is_one_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for number in (SPREAD_ROWS, SPREAD_ROWS + 1):
        many = [{**ROWS[0], "id": str(i), "loss": float("nan")} for i in range(number)]
        Output("json").listing(listing(many))
        said.append(capsys.readouterr().out)
        read = json.loads(said[-1])
        assert [row["id"] for row in read["things"]] == [row["id"] for row in many]
        assert (list(read), read["things"][0]["loss"]) == (["schema_version", "owner", "things"], "nan")
    assert len(said[0].splitlines()) > 5 * SPREAD_ROWS
    assert len(said[1].splitlines()) == SPREAD_ROWS + 1 + 6


def test_jsonl_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output("jsonl").listing(listing())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["size_bytes"] for line in lines] == [2048, 5]
    assert all(line["schema_version"] == 1 for line in lines)


def test_csv_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    Output("csv").listing(listing())
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["created_at"] == "2026-01-02T03:04:05Z"
    assert rows[0]["tags"] == '{"k": "v"}'
    assert rows[1]["id"] == "b\x1b[2J\nx"
    assert rows[1]["created_at"] == ""


def test_ids_keep_their_bytes_in_a_pipe(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Output(ids_only=True).listing(listing([{"id": os.fsdecode(b"n\xff")}]))
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"n\xff\n"


@pytest.mark.parametrize("output_format", ["json", "jsonl", "csv", "table"])
def test_nothing_to_list(output_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(output_format).listing(listing([]))
    captured = capsys.readouterr()
    expected = {"json": {"schema_version": 1, "owner": "me", "things": []}}
    match output_format:
        case "json":
            assert json.loads(captured.out) == expected["json"]
        case "csv":
            assert captured.out == "id,size_bytes\n"
        case _:
            assert captured.out == ""
    assert captured.err == ("no things yet: make one with `make thing`\n" if output_format == "table" else "")


def test_details_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    details = Details({"id": "a", "size_bytes": 3}, "a", [("id", "a"), ("size", "3 B")])
    said = {}
    for output in (Output(), Output("json"), Output("jsonl"), Output("csv"), Output(ids_only=True)):
        output.details(details)
        said[output.format, output.ids_only] = capsys.readouterr().out
    assert said["table", False] == "id    a\nsize  3 B\n"
    assert json.loads(said["json", False]) == {"schema_version": 1, "id": "a", "size_bytes": 3}
    assert json.loads(said["jsonl", False])["id"] == "a"
    assert said["csv", False] == "id,size_bytes\na,3\n"
    assert said["table", True] == "a\n"
