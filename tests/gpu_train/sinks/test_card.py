"""The model card of a repository."""

from __future__ import annotations

from gpu_train.sinks.card import BEGIN, END, card, write_card
from gpu_train.sinks.journal import SentRecord
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.memory import MemoryObjects
from gpu_train.sinks.objects.objectstore import Put
from gpu_train.sinks.setting import SinkSetting

REPO = SinkSetting.of("hf://you/ckpts/runs")


def sent(run, layout: str = "files") -> list[SentRecord]:
    return [
        SentRecord(c.record, c.job_id, c.name, layout, step=c.step, size_bytes=c.size_bytes, created_ns=c.created_ns)
        for c in run.checkpoints
    ]


def test_the_facts_of_the_runs(run) -> None:
    text = card(run.workspace, REPO, sent(run))
    assert text.startswith("---\ntags:\n- gpu-train\n---\n")
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| checkpoint-")] == [
        "| checkpoint-300", "| checkpoint-200", "| checkpoint-100",
    ]  # fmt: skip
    job = run.checkpoints[0].job_id
    assert f'subfolder="runs/{job}/checkpoints/checkpoint-300"' in text
    assert "gpu-train pull hf://you/ckpts/runs" in card(run.workspace, REPO, sent(run, "packs"))


def test_what_a_person_wrote_stays(run) -> None:
    mine = "---\nlicense: mit\n---\n\n# Mine\n\nHello.\n"
    first = card(run.workspace, REPO, sent(run)[:1], mine)
    assert first.startswith(mine.rstrip())
    second = card(run.workspace, REPO, sent(run), first + "\nAnd below.\n")
    assert second.startswith(mine.rstrip())
    assert second.endswith("\nAnd below.\n")
    assert second.count(BEGIN) == second.count(END) == 1
    assert "checkpoint-300" in second


def test_names_do_not_break_the_table(run) -> None:
    strange = sent(run)[0]._replace(name="a|b<script>\x1b[31m")
    [line] = [line for line in card(run.workspace, REPO, [strange]).splitlines() if line.startswith("| a")]
    assert line.count(" | ") == 4
    assert "<script" not in line
    assert "\x1b" not in line


def test_only_repositories_have_one(run) -> None:
    for address in ("s3://b/p", "/nas", "hf://buckets/you/b"):
        objects = MemoryObjects()
        write_card(run.workspace, SinkSetting.of(address), objects, sent(run))
        assert objects.objects == {}
    objects = MemoryObjects()
    write_card(run.workspace, REPO, objects, sent(run))
    written = objects.objects["README.md"]
    objects.put([Put("README.md", Held(written))])
    write_card(run.workspace, REPO, objects, sent(run))
    assert objects.objects == {"README.md": written}
