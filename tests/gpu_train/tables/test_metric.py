from __future__ import annotations

from gpu_train.tables.event import Event
from gpu_train.tables.metric import Metric, at_step
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
    assert at_step(rows, 0) == {"lr": 0.1}
    assert at_step(rows, 2) == {"loss": 2.5, "eval": 0.2, "lr": 0.1}
    assert at_step(rows, 9) == {"loss": 3.0, "eval": 0.2, "lr": 0.1}
    assert at_step(rows, None) == {"loss": 2.5, "eval": 0.2, "lr": 0.1}
