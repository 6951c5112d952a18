from __future__ import annotations

from gpu_train.tables.event import Event
from gpu_train.tables.metric import Known, Metric
from gpu_train.workspace import Workspace


def test_metrics_and_events_are_appended_in_order(workspace: Workspace) -> None:
    workspace.metrics.add("a", [Metric(1, 10, {"loss": 0.5}), Metric(2, None, {"lr": 1})])
    workspace.metrics.add("a", [Metric(3, 20, {"loss": 0.25}, "trainer_state")])
    workspace.metrics.add("ab", [Metric(9, 1, {"x": 1})])
    found = workspace.metrics.list("a")
    assert [(m.seq, m.step, dict(m.values), m.source) for m in found] == [
        (1, 10, {"loss": 0.5}, "log"), (2, None, {"lr": 1}, "log"), (3, 20, {"loss": 0.25}, "trainer_state"),
    ]  # fmt: skip
    assert workspace.metrics.list("a", after=2) == found[2:]
    workspace.events.add("a", [Event(1, "one"), Event(2, "two", "gone", fields={"name": "x\udcff"})])
    assert [(e.seq, e.text, e.kind, dict(e.fields)) for e in workspace.events.list("a", after=1)] == [
        (2, "two", "gone", {"name": "x\udcff"})
    ]
    assert [e.text for e in workspace.events.list("a", kind="note")] == ["one"]


def test_metrics_at_a_step() -> None:
    rows = [
        Metric(1, 1, {"loss": 1.0}),
        Metric(2, 3, {"loss": 3.0}),
        Metric(3, 2, {"loss": 2.0, "eval": 0.2}),
        Metric(4, None, {"lr": 0.1}),
        Metric(5, 2, {"loss": 2.5}),
    ]
    known = Known()
    for row in rows:
        known.add(row)
    assert known.at(0) == {"lr": 0.1}
    assert known.at(2) == {"loss": 2.5, "eval": 0.2, "lr": 0.1}
    assert known.at(9) == {"loss": 3.0, "eval": 0.2, "lr": 0.1}
    assert known.at(None) == {"loss": 2.5, "eval": 0.2, "lr": 0.1}


def test_known_values_grow_with_the_reports() -> None:
    """Taking reports in one by one gives at each moment what reading all of them anew gives."""
    rows = [
        Metric(0, step, {name: float(at)})
        for at, (step, name) in enumerate(
            [(1, "a"), (5, "a"), (3, "a"), (3, "a"), (None, "b"), (2, "b"), (None, "b"), (5, "a"), (0, "a")]
        )
    ]

    def slow(step: int | None, rows: list[Metric]) -> dict[str, float]:
        found: dict[str, tuple[int, float]] = {}
        for row in rows:
            at = -1 if row.step is None else row.step
            for name, value in row.values.items():
                if step is None or (at <= step and found.get(name, (at, 0.0))[0] <= at):
                    found[name] = (at, value)
        return {name: value for name, (_, value) in found.items()}

    known = Known()
    for at, row in enumerate(rows, 1):
        known.add(row)
        for step in (None, 0, 1, 2, 3, 4, 5, 9):
            assert known.at(step) == slow(step, rows[:at])
    assert known.has(3, "a") and known.has(None, "b") and not known.has(3, "b") and not known.has(None, "c")
