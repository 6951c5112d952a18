"""The tracker with a clock of the test's own: what it takes, what it leaves, what it reports."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from gpu_train.capture.commit import Commit
from gpu_train.capture.decision import Decision
from gpu_train.capture.finder import look_inside
from gpu_train.capture.pin import link_tree
from gpu_train.capture.tracker import Tracker
from gpu_train_cas.errors import SourceChanged


def safetensors(fill: int = 0) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * 64


class Watch:
    """A tracker over two folders, and time that passes when the test says so."""

    def __init__(self, base: Path) -> None:
        self.root, self.pins, self.now = base / "checkpoints", base / "pins", 1000.0
        self.root.mkdir()
        self.written = False
        self.tracker = self.fresh()

    def fresh(self) -> Tracker:
        return Tracker(self.root, self.pins, settle_s=2.0, clock=lambda: self.now)

    def turn(self, after_s: float = 0.1, **ended: bool) -> list[str]:
        """One look after some time; what was decided, as "name: proof" or "name: !missing" or "name: gone"."""
        self.now += after_s
        self.tracker.look()
        return [said(d) for d in self.tracker.decide(**ended)]

    def settle(self, seconds: float = 3.0) -> list[str]:
        made = []
        for _ in range(int(seconds / 0.1)):
            made += self.turn(0.1)
        return made

    def write(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.rest(path.parent)
        return path

    def rest(self, folder: Path) -> None:
        """Have a folder look as if nothing had happened in it for a while when it is first seen."""
        while folder != self.root:
            os.utime(folder, ns=(0, time.time_ns() - 5 * 10**9))
            folder = folder.parent


def said(decision: Decision) -> str:
    if decision.gone:
        return f"{decision.candidate.name}: gone"
    return f"{decision.candidate.name}: {decision.verdict.proof or '!' + decision.verdict.missing}"


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_a_checkpoint_is_taken_once(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors())
    assert watch.turn() == []
    assert watch.settle() == ["checkpoint-5: files"]
    assert watch.settle() == []
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle() == []
    assert watch.turn(ended=True) == []


def test_a_marker_and_deletion_at_once(watch: Watch) -> None:
    for name in ("model.safetensors", "training_args.bin", "trainer_state.json"):
        watch.write(f"checkpoint-5/{name}", safetensors() if name.startswith("m") else b"{}")
    assert watch.turn() == []
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle(1) == ["checkpoint-5: hf-trainer"]


def test_a_folder_that_may_be_amid_its_removal_when_it_is_first_looked_at(watch: Watch) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
        watch.write(f"checkpoint-5/{name}", safetensors() if name.startswith("m") else b"{}")
    (watch.root / "checkpoint-5" / "optimizer.safetensors").unlink()
    assert watch.turn() == []
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle(1) == ["checkpoint-5: !something in it may have been deleted before it was first looked at"]


def test_a_folder_that_is_written_on_after_it_was_first_looked_at_was_not_amid_its_removal(watch: Watch) -> None:
    (watch.root / "checkpoint-5").mkdir()
    (watch.root / "checkpoint-5" / "model.safetensors").write_bytes(safetensors())
    assert watch.turn() == []
    (watch.root / "checkpoint-5" / "trainer_state.json").write_text("{}")
    assert watch.turn() == []
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle(1) == ["checkpoint-5: hf-trainer"]


def test_files_that_vanish_one_after_another_are_all_kept(watch: Watch) -> None:
    for name in ("model.safetensors", "training_args.bin", "trainer_state.json"):
        watch.write(f"checkpoint-5/{name}", safetensors() if name.startswith("m") else b"{}")
    watch.turn(0.1)
    (watch.root / "checkpoint-5" / "trainer_state.json").unlink()
    assert watch.turn(0.1) == []
    shutil.rmtree(watch.root / "checkpoint-5")
    watch.turn()
    watch.now += 1
    watch.tracker.look()
    (decision,) = watch.tracker.decide()
    assert said(decision) == "checkpoint-5: hf-trainer"
    assert set(look_inside(str(decision.candidate.base()))[0]) == {
        "model.safetensors", "training_args.bin", "trainer_state.json",
    }  # fmt: skip


def test_a_file_removed_from_a_resting_checkpoint_is_no_part_of_it(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors())
    scratch = watch.write("checkpoint-5/scratch.bin", b"x")
    watch.turn()
    scratch.unlink()
    watch.tracker.look()
    made = []
    for _ in range(40):
        watch.now += 0.1
        watch.tracker.look()
        made += watch.tracker.decide()
    assert [said(d) for d in made] == ["checkpoint-5: files"]
    assert set(made[0].candidate.members) == {"model.safetensors"}


def test_versions_by_rename(watch: Watch) -> None:
    """Each version replaces the one before by a rename, as careful programs do."""
    for version in range(3):
        watch.write("new.tmp", safetensors(version))
        (watch.root / "new.tmp").replace(watch.root / "last.safetensors")
        watch.tracker.look()
    made = watch.turn()
    assert made == ["last.safetensors: files"] * 3


def test_versions_in_place(watch: Watch) -> None:
    path = watch.write("ckpt-1.safetensors", safetensors(1))
    assert watch.turn() == ["ckpt-1.safetensors: files"]
    with open(path, "r+b") as file:
        file.truncate(10)
    assert watch.turn() == []
    path.write_bytes(safetensors(2))
    assert watch.turn() == ["ckpt-1.safetensors: files"]


def test_a_folder_made_anew_under_the_same_name(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors(1))
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    watch.write("checkpoint-5/model.safetensors", safetensors(2))
    assert watch.settle() == ["checkpoint-5: files", "checkpoint-5: files"]


def test_a_renamed_checkpoint_is_one(watch: Watch) -> None:
    watch.write("saving/checkpoint-5/model.safetensors", safetensors(1))
    watch.turn()
    os.rename(watch.root / "saving" / "checkpoint-5", watch.root / "checkpoint-5")
    assert watch.settle() == ["checkpoint-5: files"]
    os.rename(watch.root / "checkpoint-5", watch.root / "checkpoint-5-old")
    assert watch.settle() == []


def test_a_second_link_or_a_moved_file_is_an_alias(watch: Watch) -> None:
    path = watch.write("epoch=1-step=5.ckpt", safetensors(1))
    assert watch.turn() == ["epoch=1-step=5.ckpt: files"]
    os.link(path, watch.root / "best.ckpt")
    (watch.root / "last.ckpt").symlink_to(path.name)
    assert watch.settle() == []
    os.rename(path, watch.root / "kept.ckpt")
    assert watch.settle() == []


def test_additions_to_a_taken_checkpoint_make_a_new_version(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors(1))
    assert watch.settle() == ["checkpoint-5: files"]
    watch.write("checkpoint-5/optimizer.safetensors", safetensors(2))
    assert watch.settle() == ["checkpoint-5: files"]
    (watch.root / "checkpoint-5" / "optimizer.safetensors").unlink()
    assert watch.settle() == []


def test_a_file_rewritten_deep_inside_is_noticed(watch: Watch) -> None:
    path = watch.write("checkpoint-5/a/b/model.safetensors", safetensors(1))
    watch.write("checkpoint-6/model.safetensors", safetensors(1))
    assert sorted(watch.settle()) == ["checkpoint-5: files", "checkpoint-6: files"]
    path.write_bytes(safetensors(2))
    assert watch.settle() == ["checkpoint-5: files"]


def test_a_folder_whose_only_file_grows_is_one_checkpoint(watch: Watch) -> None:
    path = watch.write("step-5/__0_0.distcp", b"1")
    for _ in range(5):
        assert watch.turn() == []
        with open(path, "ab") as file:
            file.write(b"more")
    watch.write("step-5/.metadata", b"__0_0.distcp")
    assert watch.settle() == ["step-5: torch-dcp"]


def test_a_temporary_folder_is_kept_from_the_start_and_renamed(watch: Watch) -> None:
    folder = watch.write("tmp-checkpoint-5/model.safetensors", safetensors(1)).parent
    watch.write("tmp-checkpoint-5/trainer_state.json", b"{}")
    assert watch.settle(60) == []
    (candidate,) = watch.tracker.watched
    assert candidate.is_held
    folder.rename(watch.root / "checkpoint-5")
    assert watch.settle() == ["checkpoint-5: hf-trainer"]


def test_a_temporary_folder_that_is_deleted_was_no_checkpoint(watch: Watch) -> None:
    folder = watch.write("tmp-checkpoint-5/model.safetensors", safetensors(1)).parent
    assert watch.turn() == []
    shutil.rmtree(folder)
    assert watch.settle() == []
    assert list(watch.pins.iterdir()) == []
    watch.write("tmp-checkpoint-6/model.safetensors", safetensors(1))
    assert watch.turn() == []
    says = "tmp-checkpoint-6: !its end: tmp-checkpoint-6 says that it is being written"
    assert watch.turn(ended=True) == [says]


def test_files_of_one_name_are_one_checkpoint(watch: Watch) -> None:
    watch.write("ckpt-5.data-00000-of-00002", b"d")
    watch.write("ckpt-5.index", bytes.fromhex("57fb808b247547db"))
    watch.write("checkpoint", b"model_checkpoint_path")
    assert watch.settle() == []
    watch.write("ckpt-5.data-00001-of-00002", b"d")
    watch.tracker.look()
    watch.now += 1
    watch.tracker.look()
    (decision,) = watch.tracker.decide()
    assert said(decision) == "ckpt-5: tensorflow"
    assert decision.candidate.base() == decision.candidate.pin / "files"
    names = ["ckpt-5.data-00000-of-00002", "ckpt-5.data-00001-of-00002", "ckpt-5.index"]
    assert sorted(decision.candidate.members) == names
    for path in watch.root.glob("ckpt-5.*"):
        path.unlink()
    assert watch.settle() == []


def test_a_group_is_taken_over_by_a_later_agent(watch: Watch) -> None:
    watch.write("run/ep1-ba5-rank0.pt", safetensors(1))
    watch.turn()
    watch.tracker = watch.fresh()
    assert watch.tracker.recover() == []
    assert watch.settle() == ["run/ep1-ba5: files"]
    watch.write("run/ep2-ba9-rank0.pt", safetensors(2))
    watch.turn()
    (watch.root / "run" / "ep2-ba9-rank0.pt").unlink()
    watch.tracker = watch.fresh()
    watch.tracker.recover()
    assert sorted(watch.settle()) == ["run/ep1-ba5: files", "run/ep2-ba9: files"]


def test_a_text_file_beside_it_must_name_it(watch: Watch) -> None:
    watch.write("global_step5/mp_rank_00_model_states.pt", safetensors(1))
    assert watch.settle(60) == []
    watch.write("latest", b"global_step4")
    assert watch.settle() == []
    watch.write("latest", b"global_step5")
    assert watch.turn() == []  # when it came, the files had been looked at for the last time before
    assert watch.settle(1) == ["global_step5: deepspeed"]


def test_one_that_was_named_before_it_was_deleted(watch: Watch) -> None:
    folder = watch.write("global_step5/mp_rank_00_model_states.pt", safetensors(1)).parent
    watch.turn()
    watch.write("latest", b"global_step5")
    shutil.rmtree(folder)
    assert watch.settle(1) == ["global_step5: deepspeed"]


def test_a_late_rank_is_waited_for_when_the_last_one_had_it(watch: Watch) -> None:
    for step in (5, 6):
        for rank in (0, 1):
            watch.write(f"checkpoint-{step}/rng_state_{rank}.pth", safetensors(rank))
        watch.write(f"checkpoint-{step}/trainer_state.json", b"{}")
        assert watch.settle(1) == [f"checkpoint-{step}: hf-trainer"]
    watch.write("checkpoint-7/rng_state_0.pth", safetensors(0))
    watch.write("checkpoint-7/trainer_state.json", b"{}")
    assert watch.settle(1.5) == []
    watch.write("checkpoint-7/rng_state_1.pth", safetensors(1))
    assert watch.settle(1) == ["checkpoint-7: hf-trainer"]
    watch.write("checkpoint-8/rng_state_0.pth", safetensors(0))
    watch.write("checkpoint-8/trainer_state.json", b"{}")
    assert watch.settle() == ["checkpoint-8: hf-trainer"]


def test_without_a_sign_the_last_one_tells_what_to_wait_for(watch: Watch) -> None:
    watch.write("state_1/model.safetensors", safetensors(1))
    watch.write("state_1/optimizer.safetensors", safetensors(2))
    assert watch.settle() == ["state_1: files"]
    watch.write("state_2/model.safetensors", safetensors(3))
    assert watch.settle(25) == []
    watch.write("state_3/model.safetensors", safetensors(3))  # one after the other: the second is done by now
    assert watch.settle() == ["state_2: files", "state_3: files"]


def test_what_the_last_one_had_is_missing_when_the_job_is_killed(watch: Watch) -> None:
    watch.write("state_1/model.safetensors", safetensors(1))
    watch.write("state_1/optimizer.safetensors", safetensors(2))
    assert watch.settle() == ["state_1: files"]
    watch.write("state_2/model.safetensors", safetensors(3))
    watch.settle()
    assert watch.turn(ended=True) == ["state_2: !optimizer.safetensors, as state_1 had"]


def test_an_edit_of_a_finished_one_needs_no_second_sign(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors(1))
    config = watch.write("checkpoint-5/config.json", b"{}")
    watch.write("checkpoint-5/trainer_state.json", b"{}")
    watch.turn()
    config.write_bytes(b"[]")
    assert watch.settle(25) == []
    assert watch.settle(10) == ["checkpoint-5: hf-trainer"]


def test_an_earlier_one_that_vanishes_comes_first(watch: Watch) -> None:
    watch.write("checkpoint-5/trainer_state.json", b"{}")
    watch.turn()
    watch.write("checkpoint-6/trainer_state.json", b"{}")
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.turn(0.2) == []
    assert watch.turn(0.2) == []
    assert watch.turn(0.2) == ["checkpoint-5: hf-trainer", "checkpoint-6: hf-trainer"]


def test_one_that_is_written_to_after_the_look_is_not_taken(watch: Watch) -> None:
    path = watch.write("w.pkl", b"half")
    watch.settle(1.9)
    watch.now += 0.2
    watch.tracker.look()
    path.write_bytes(b"half and half")
    assert watch.tracker.decide() == []
    assert watch.settle() == ["w.pkl: quiet"]


def test_one_that_was_open_when_the_job_was_killed_is_not_whole(watch: Watch) -> None:
    watch.tracker = Tracker(
        watch.root, watch.pins, settle_s=2.0, clock=lambda: watch.now, processes=lambda: {os.getpid()}
    )
    with open(watch.write("w.pkl", b""), "wb", buffering=0) as file:
        file.write(b"half")
        assert watch.settle(5) == []
    says = "w.pkl: !its end: a process had it open for writing when the job ended"
    assert watch.turn(ended=True) == [says]


def test_loose_files_become_final(watch: Watch) -> None:
    watch.write("model.safetensors", safetensors(1))
    watch.turn()
    watch.write("config.json", b"{}")
    watch.write("run/model.safetensors", safetensors(1))
    watch.write("run/config.json", b"{}")
    watch.write("run/checkpoint-5/model.safetensors", safetensors(1))
    assert sorted(watch.settle()) == ["final: files", "run/checkpoint-5: files", "run/final: files"]


def test_a_weights_file_that_gets_companions_right_before_the_end_is_part_of_final_alone(watch: Watch) -> None:
    watch.write("model.safetensors", safetensors(1))
    watch.turn()
    watch.write("config.json", b"{}")
    assert watch.turn(ended=True, clean_end=True) == ["final: files"]


def test_unfinished_at_the_end(watch: Watch) -> None:
    watch.write("step-5/__0_0.distcp", safetensors())
    watch.write("w.pkl", b"bytes")
    assert watch.turn() == []
    assert sorted(watch.turn(ended=True)) == [
        "step-5: !.metadata (torch-dcp)",
        "w.pkl: !proof that it was finished: the job ended while it was being written",
    ]


def test_at_a_clean_end_what_is_there_is_whole(watch: Watch) -> None:
    watch.write("w.pkl", b"bytes")
    watch.turn()
    assert watch.turn(ended=True, clean_end=True) == ["w.pkl: ended"]


def test_deleted_without_proof_is_kept_as_incomplete(watch: Watch) -> None:
    watch.write("checkpoint-5/w.pkl", b"bytes")
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle() == ["checkpoint-5: !proof that it was finished"]


def test_a_nemo_marker_beside(watch: Watch) -> None:
    watch.write("m-1.nemo", b"bytes")
    watch.write("m-1-unfinished", b"")
    assert watch.settle(5) == []
    (watch.root / "m-1-unfinished").unlink()
    assert watch.settle(5) == ["m-1.nemo: quiet"]


def test_what_cannot_be_linked_is_read_where_it_lies(watch: Watch) -> None:
    """A file stands where the pins would go, so no link can be made."""
    watch.pins.write_bytes(b"")
    watch.write("ckpt-1.safetensors", safetensors(1))
    watch.tracker.look()
    (decision,) = watch.tracker.decide()
    assert decision.candidate.base() == watch.root
    decision.candidate.check(watch.root)


def test_what_cannot_be_linked_and_is_deleted_is_gone(watch: Watch) -> None:
    watch.pins.write_bytes(b"")
    watch.write("checkpoint-5/w.pkl", b"bytes")
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    assert watch.settle() == ["checkpoint-5: gone"]


def test_a_change_after_the_judgement_is_found(watch: Watch) -> None:
    path = watch.write("ckpt-1.safetensors", safetensors(1))
    watch.tracker.look()
    (decision,) = watch.tracker.decide()
    base = decision.candidate.base()
    decision.candidate.check(base)
    path.write_bytes(safetensors(2) + b"more")
    with pytest.raises(SourceChanged, match=r"ckpt-1.safetensors changed while it was being stored"):
        decision.candidate.check(base)
    watch.tracker.look_again(decision.candidate)
    watch.tracker.look()
    assert [c.name for c in watch.tracker.watched] == ["ckpt-1.safetensors"]


def test_what_an_earlier_agent_pinned_is_taken_over(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors(1))
    watch.write("checkpoint-6/model.safetensors", safetensors(2))
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    watch.tracker = watch.fresh()
    assert watch.tracker.recover() == []
    assert sorted(watch.settle()) == ["checkpoint-5: files", "checkpoint-6: files"]


def test_a_commit_that_an_earlier_agent_took_is_taken_over(watch: Watch) -> None:
    path = watch.write("w.pkl", b"bytes")
    assert watch.tracker.take_commit(Commit(str(path), step=7, tags={"a": "b"})) is not None
    watch.tracker = watch.fresh()
    (decision,) = watch.tracker.recover()
    assert said(decision) == "w.pkl: explicit"
    assert decision.candidate.commit == Commit(str(path), None, 7, {}, {"a": "b"})
    assert watch.settle() == []


def test_a_commit_with_links_of_its_own(watch: Watch) -> None:
    path = watch.write("checkpoint-5/model.safetensors", safetensors(1)).parent
    watch.turn()
    assert link_tree(path, watch.pins / "c1" / "checkpoint-5")
    shutil.rmtree(path)
    decision = watch.tracker.take_commit(Commit(str(path), str(watch.pins / "c1")))
    assert decision is not None
    assert said(decision) == "checkpoint-5: explicit"
    assert set(look_inside(str(decision.candidate.base()))[0]) == {"model.safetensors"}
    assert watch.settle() == []
    decision.candidate.discard()
    assert list(watch.pins.iterdir()) == []


def commit(watch: Watch, path: Path, number: int) -> Commit:
    """What `gpu_train.commit` would say of a file now, its link made."""
    pin = watch.pins / f"c{number}"
    assert link_tree(path, pin / path.name)
    return Commit(str(path), str(pin), number)


def replace(watch: Watch, name: str, data: bytes) -> Path:
    """Write a file as Lightning does: elsewhere, then moved over the old one."""
    os.rename(watch.write(".moving", data), watch.root / name)
    return watch.root / name


def test_commits_of_a_replaced_file_and_a_look_in_between(watch: Watch) -> None:
    first = commit(watch, replace(watch, "last.ckpt", safetensors(1)), 1)
    path = replace(watch, "last.ckpt", safetensors(2))
    watch.tracker.look()  # sees the second one before the first one's commit is read
    second = commit(watch, path, 2)
    third = commit(watch, replace(watch, "last.ckpt", safetensors(3)), 3)
    for one in (first, second, third):
        decision = watch.tracker.take_commit(one)
        assert decision is not None
        assert (decision.candidate.base() / "last.ckpt").read_bytes() == safetensors(one.step or 0)
    assert watch.settle() == []
    assert len(list(watch.pins.iterdir())) == 3


def test_a_commit_read_late_leaves_the_newer_content_to_be_taken(watch: Watch) -> None:
    first = commit(watch, replace(watch, "last.ckpt", safetensors(1)), 1)
    replace(watch, "last.ckpt", safetensors(2))
    watch.tracker.look()
    assert watch.tracker.take_commit(first) is not None
    (decision,) = watch.tracker.decide()
    assert said(decision) == "last.ckpt: files"
    assert (decision.candidate.base() / "last.ckpt").read_bytes() == safetensors(2)
    assert watch.settle() == []


def test_what_was_seen_while_it_was_written_is_part_of_its_commit(watch: Watch) -> None:
    path = watch.write("last.ckpt", safetensors()[:40])
    assert watch.turn() == []
    with open(path, "ab") as file:
        file.write(safetensors()[40:])
    assert watch.tracker.take_commit(commit(watch, path, 1)) is not None
    assert watch.settle() == []
    assert len(list(watch.pins.iterdir())) == 1


def test_content_that_a_commit_replaces_is_still_decided(watch: Watch) -> None:
    watch.write("checkpoint-5/model.safetensors", safetensors(1))
    watch.turn()
    shutil.rmtree(watch.root / "checkpoint-5")
    watch.write("checkpoint-5/model.safetensors", safetensors(2))
    decision = watch.tracker.take_commit(commit(watch, watch.root / "checkpoint-5", 1))
    assert decision is not None
    assert watch.settle() == ["checkpoint-5: files"]


def test_a_commit_of_what_is_not_there(watch: Watch) -> None:
    assert watch.tracker.take_commit(Commit(str(watch.root / "nothing"))) is None


def test_folder_modes_and_times_are_the_checkpoints(watch: Watch) -> None:
    folder = watch.write("checkpoint-5/sub/model.safetensors", safetensors(1)).parents[1]
    (folder / "sub").chmod(0o750)
    os.utime(folder / "sub", ns=(10**18, 10**18))
    watch.turn()
    (decision,) = [d for d in _decisions(watch) if d.candidate.name == "checkpoint-5"]
    pinned = (decision.candidate.base() / "sub").stat()
    assert (pinned.st_mode & 0o7777, pinned.st_mtime_ns) == (0o750, 10**18)


def _decisions(watch: Watch) -> list[Decision]:
    watch.now += 3
    watch.tracker.look()
    return watch.tracker.decide()
