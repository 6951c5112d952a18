"""The agent drops what no policy preserves while the job runs."""

from __future__ import annotations

from pathlib import Path

from gpu_train.retention import removal
from gpu_train.retention.trash import POLICY, Trash
from gpu_train.workspace import Workspace

SCRIPT = """
    import gpu_train
    from writing import safetensors
    for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, 2.0], 1):
        with gpu_train.checkpoint(step=step, metrics={"loss": loss}) as path:
            (path / "model.safetensors").write_bytes(safetensors(step))
"""


def test_a_job_keeps_what_it_was_told_to(launch, home: Path) -> None:
    job = launch.script(SCRIPT, retention={"latest": 2, "best": {"metric": "loss"}})
    code, _, err = job.finish()
    assert (code, err) == (0, b"")
    with Workspace.open(home) as workspace:
        here = workspace.checkpoints.list(job.job_id)
        assert [c.name for c in here] == ["checkpoint-5", "checkpoint-4", "checkpoint-2"]
        trashed = Trash(workspace).list(job.job_id)
        assert {(c.name, c.removed_by) for c in trashed} == {("checkpoint-1", POLICY), ("checkpoint-3", POLICY)}
        texts = [e.text for e in workspace.events.list(job.job_id, kind="removed")]
        assert texts == [
            f"checkpoint-{n} went to the trash: the policy (latest 2, best loss:1) does not keep it" for n in (1, 3)
        ]
        assert len(removal.undo(workspace, [job.job_id]).checkpoints) == 2
        report = workspace.store.verify()
        assert report.complete and not report.damaged


def test_a_projects_setting_and_none(launch, home: Path) -> None:
    (launch.cwd / "gpu-train.toml").write_text("[projects.p.retention]\nlatest = 1\n")
    one, other = launch.script(SCRIPT, project="p"), launch.script(SCRIPT)
    assert (one.finish()[0], other.finish()[0]) == (0, 0)
    with Workspace.open(home) as workspace:
        counts = workspace.checkpoints.counts()
    assert counts == {one.job_id: 1, other.job_id: 5}
