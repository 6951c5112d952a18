"""What --sort, --filter and --search mean."""

from datetime import UTC, datetime

import click
import pytest

from gpu_train_cli.query import Field, matcher, parse_size, searcher, sort

FIELDS = {
    "step": Field("step", "number", descending=True),
    "name": Field("name", order=lambda name: (len(name), name)),
    "size": Field("size_bytes", "size", descending=True),
    "created": Field("created_at", "time", descending=True),
    "metric:NAME": Field("metrics"),
    "tag:NAME": Field("tags"),
}


def row(step: int | None, name: str, size_bytes: int, loss: float, day: int, **tags: str) -> dict[str, object]:
    return {
        "step": step,
        "name": name,
        "size_bytes": size_bytes,
        "metrics": {"loss": loss},
        "tags": tags,
        "created_at": datetime(2026, 1, day, tzinfo=UTC),
    }


ROWS = [
    row(200, "checkpoint-200", 2048, 0.5, 2, best="yes"),
    row(1000, "checkpoint-1000", 1024, float("nan"), 3),
    row(None, "final", 4096, 0.25, 4),
]


def names(rows: list) -> list[str]:
    return [row["name"] for row in rows]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("step", ["checkpoint-1000", "checkpoint-200", "final"]),
        ("step:asc", ["checkpoint-200", "checkpoint-1000", "final"]),
        ("name", ["final", "checkpoint-200", "checkpoint-1000"]),
        ("name:desc", ["checkpoint-1000", "checkpoint-200", "final"]),
        ("size", ["final", "checkpoint-200", "checkpoint-1000"]),
        ("metric:loss", ["final", "checkpoint-200", "checkpoint-1000"]),
        ("metric:loss:desc", ["checkpoint-200", "final", "checkpoint-1000"]),
        ("metric:absent", ["checkpoint-200", "checkpoint-1000", "final"]),
    ],
)
def test_sort_puts_rows_without_the_value_last(expression: str, expected: list[str]) -> None:
    assert names(sort(ROWS, expression, FIELDS)) == expected


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        (["step>=500"], ["checkpoint-1000"]),
        (["step < 500"], ["checkpoint-200"]),
        (["step!=200"], ["checkpoint-1000", "final"]),
        (["size>1KiB"], ["checkpoint-200", "final"]),
        (["size>=1k", "name~POINT"], ["checkpoint-200", "checkpoint-1000"]),
        (["metric:loss<0.4"], ["final"]),
        (["tag:best=yes"], ["checkpoint-200"]),
        (["created>=2026-01-03T00:00+00:00"], ["checkpoint-1000", "final"]),
        (["name=final"], ["final"]),
    ],
)
def test_filters(expressions: list[str], expected: list[str]) -> None:
    assert names([row for row in ROWS if matcher(expressions, FIELDS)(row)]) == expected


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("step", "FIELD OP VALUE"),
        ("steps>1", "no field 'steps'"),
        ("step>many", "'many' in 'step>many' is not a number, such as 500"),
        ("size>1XB", "is not a size, such as 1.5GiB"),
        ("created>tomorrow", "is not a time"),
    ],
)
def test_a_wrong_filter_says_what_is_right(expression: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        matcher([expression], FIELDS)
    assert said in caught.value.message


def test_search_wants_every_word_whatever_the_case() -> None:
    found = searcher("POINT 200", ["name", "tags"])
    assert names([row for row in ROWS if found(row)]) == ["checkpoint-200"]
    assert all(searcher(None, ["name"])(row) for row in ROWS)


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("500", 500),
        ("500B", 500),
        ("1.5GiB", 3 * 2**29),
        ("1.5G", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("20k", 20480),
    ],
)
def test_sizes(written: str, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes
