"""Sentry and tracker together, each acting only when it is told to: what the agent makes of what it hears late."""

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
from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.sighting import Sighting
from gpu_train.capture.watch.view import View


def safetensors(fill: int, count: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * count


class Desk:
    """A tracker that hears from a post, and whose time passes faster when the test says so."""

    def __init__(self, post) -> None:
        self.post, self.root, self.ahead_s = post, post.root, 0.0
        self.dropped: list[str] = []
        self.tracker = self.fresh()
        self.tracker.recover()
        self.post.sentry.begin_anew()
        self.hear()

    def fresh(self) -> Tracker:
        return Tracker(
            self.root, self.post.pins, settle_s=2.0, clock=lambda: time.monotonic() + self.ahead_s,
            view=View(self.root, self.drop),
        )  # fmt: skip

    def drop(self, hold: str) -> None:
        self.dropped.append(hold)
        Path(hold).unlink(missing_ok=True)

    def hear(self) -> None:
        """Take in all that has happened, copies included."""
        told = self.post.look()
        waiting = sum(seen.coming for seen in told) - sum(seen.kind == "overwritten" for seen in told)
        self.tracker.take(told + (self.post.copies(waiting) if waiting else []))

    def turn(self, after_s: float = 0.1, **ended: bool) -> list[str]:
        return [said(d) for d in self.decisions(after_s, **ended)]

    def decisions(self, after_s: float = 0.1, **ended: bool) -> list[Decision]:
        self.ahead_s += after_s
        self.hear()
        self.tracker.glance()
        made = self.tracker.decide(**ended)
        self.tracker.release()
        return made

    def settle(self) -> list[str]:
        return [text for _ in range(35) for text in self.turn()]

    def write(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def held(self) -> list[Path]:
        return list((self.post.pins / "caught").iterdir())


def said(decision: Decision) -> str:
    if decision.gone:
        return f"{decision.candidate.name}: gone"
    return f"{decision.candidate.name}: {decision.verdict.proof or '!' + decision.verdict.missing}"


def content(decision: Decision) -> dict[str, bytes]:
    base = decision.candidate.base()
    decision.candidate.check(base)
    return {rel: (base / rel).read_bytes() for rel, m in look_inside(str(base))[0].items() if m.is_file}


@pytest.fixture
def desk(post) -> Desk:
    return Desk(post)


def test_a_folder_that_came_and_went_unseen(desk: Desk) -> None:
    for step in (5, 6):
        (desk.root / f"checkpoint-{step}").mkdir()
        desk.post.outbox.now = time.monotonic()
        desk.tracker.take(desk.post.look())
        for name in ("model.safetensors", "training_args.bin", "trainer_state.json"):
            desk.write(f"checkpoint-{step}/{name}", safetensors(step) if name.startswith("m") else b"{}")
        told = desk.post.look()
        shutil.rmtree(desk.root / f"checkpoint-{step}")
        desk.tracker.take(told + desk.post.look())
    made = [d for _ in range(10) for d in desk.decisions()]
    assert [said(d) for d in made] == ["checkpoint-5: hf-trainer", "checkpoint-6: hf-trainer"]
    assert [content(d)["model.safetensors"][-1] for d in made] == [5, 6]
    assert desk.held() == []


def test_an_empty_folder_in_it_goes_last(desk: Desk) -> None:
    (desk.root / "checkpoint-5").mkdir()
    desk.hear()
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    (desk.root / "checkpoint-5" / "empty").mkdir()
    told = desk.post.look()
    (desk.root / "checkpoint-5" / "model.safetensors").unlink()
    told += desk.post.look()
    shutil.rmtree(desk.root / "checkpoint-5")
    told += desk.post.look()
    desk.tracker.take(told)
    assert desk.settle() == ["checkpoint-5: !something in it may have been deleted before it could be kept"]


def test_a_folder_that_was_renamed_and_deleted_unseen(desk: Desk) -> None:
    (desk.root / "saving").mkdir()
    desk.hear()
    desk.write("saving/checkpoint-5/model.safetensors", safetensors(1))
    desk.hear()
    desk.write("saving/checkpoint-5/optimizer.safetensors", safetensors(2))
    (desk.root / "saving" / "checkpoint-5").rename(desk.root / "checkpoint-5")
    told = desk.post.look()
    shutil.rmtree(desk.root / "checkpoint-5")
    desk.tracker.take(told + desk.post.look())
    assert desk.settle() == ["checkpoint-5: files"]


def test_files_that_replace_each_other_unseen(desk: Desk) -> None:
    for version in range(3):
        desk.write("new.tmp", safetensors(version))
        (desk.root / "new.tmp").replace(desk.root / "last.safetensors")
        desk.hear()
    made = [d for _ in range(10) for d in desk.decisions()]
    assert [content(d)["last.safetensors"][-1] for d in made] == [0, 1, 2]
    assert desk.tracker.overwritten.lost() == []


def test_files_that_replace_each_other_before_their_moves_are_told(desk: Desk) -> None:
    """Each was caught under its first name; of the first one nothing but that is left when its move is told."""
    desk.write("new.tmp", safetensors(1))
    desk.hear()
    (desk.root / "new.tmp").replace(desk.root / "last.safetensors")
    desk.write("new.tmp", safetensors(2)).replace(desk.root / "last.safetensors")
    desk.hear()
    made = [d for _ in range(10) for d in desk.decisions()]
    assert [content(d)["last.safetensors"][-1] for d in made] == [1, 2]
    assert desk.tracker.overwritten.lost() == []


def test_versions_in_place(desk: Desk) -> None:
    for version in range(3):
        desk.write("last.safetensors", safetensors(version))
        desk.hear()
    made = [d for _ in range(10) for d in desk.decisions()]
    assert [(d.candidate.name, content(d)["last.safetensors"][-1]) for d in made] == [
        ("last.safetensors", version) for version in range(3)
    ]
    assert desk.tracker.overwritten.lost() == []
    assert desk.held() == []


def test_times_that_are_set_after_the_last_byte(desk: Desk) -> None:
    """As a move from another file system does it: a copy under the final name, then its times."""
    for version, name in enumerate(("last.safetensors", "step-1.safetensors", "last.safetensors")):
        path = desk.write(name, safetensors(version))
        told = desk.post.look()
        os.utime(path, ns=(10**18 + version, 10**18 + version))
        waiting = sum(seen.coming for seen in told)
        desk.tracker.take(told + (desk.post.copies(waiting) if waiting else []))
    made = [d for _ in range(10) for d in desk.decisions()]
    assert [(d.candidate.name, d.candidate.modified_ns - 10**18) for d in made] == [
        ("last.safetensors", 0), ("step-1.safetensors", 1), ("last.safetensors", 2),
    ]  # fmt: skip
    assert [next(iter(content(d).values()))[-1] for d in made] == [0, 1, 2]
    assert desk.tracker.overwritten.lost() == []


def test_a_version_that_nobody_could_copy_is_lost_with_its_name(desk: Desk) -> None:
    desk.write("last.safetensors", safetensors(1))
    desk.write("last.safetensors", safetensors(2, 100))
    assert [content(d)["last.safetensors"][-1] for _ in range(10) for d in desk.decisions()] == [2]
    (lost,) = desk.tracker.overwritten.lost()
    assert lost.name == "last.safetensors"


def test_a_version_is_not_accounted_for_by_an_earlier_one(desk: Desk) -> None:
    """The copy of the first is handed over when the second has been closed, and nobody could copy that."""
    path = desk.write("last.safetensors", safetensors(1))
    desk.hear()
    path.write_bytes(safetensors(2, 100))
    told = desk.post.look()
    desk.post.sentry.begin_anew()
    desk.tracker.take(told + desk.post.copies())
    with open(path, "r+b") as file:
        file.write(safetensors(3, 200)[:99])
        file.flush()
        assert [content(d)["last.safetensors"][-1] for d in desk.tracker.decide()] == [1]
        file.seek(0)
        file.write(safetensors(3, 200))
    desk.hear()
    assert [content(d)["last.safetensors"][-1] for _ in range(10) for d in desk.decisions()] == [3]
    assert [lost.name for lost in desk.tracker.overwritten.lost()] == ["last.safetensors"]


def test_a_folder_that_is_saved_again_before_it_was_taken_is_lost_with_its_name(desk: Desk) -> None:
    (desk.root / "checkpoint-1").mkdir()
    desk.hear()
    for version in range(3):
        for name in ("model.safetensors", "training_args.bin", "trainer_state.json"):
            data = safetensors(version, 64 + version)
            desk.write(f"checkpoint-1/{name}", data if name.startswith("m") else b'{"n": %d}' % version)
        desk.hear()
        assert desk.turn() == []
    assert desk.settle() == ["checkpoint-1: hf-trainer"]
    assert [lost.name for lost in desk.tracker.resaved.lost()] == ["checkpoint-1"] * 2


def test_a_file_with_a_step_in_its_name_that_is_written_over_before_anybody_looked(desk: Desk) -> None:
    desk.write("step-100.safetensors", safetensors(1))
    desk.tracker.take(desk.post.look())
    desk.write("step-100.safetensors", safetensors(2, 100))
    assert [content(d)["step-100.safetensors"][-1] for _ in range(10) for d in desk.decisions()] == [2]
    assert [lost.name for lost in desk.tracker.overwritten.lost()] == ["step-100.safetensors"]


def test_a_file_that_is_written_in_several_goes_is_one_version(desk: Desk) -> None:
    data = safetensors(1, 1000)
    path = desk.write("last.safetensors", data[:500])
    assert desk.turn() == []
    with open(path, "ab") as file:
        file.write(data[500:])
    assert [content(d)["last.safetensors"] for _ in range(10) for d in desk.decisions()] == [data]
    path = desk.write("notes.pkl", b"one\n")
    desk.hear()
    with open(path, "ab") as file:
        file.write(b"two\n")
    assert desk.settle() == ["notes.pkl: quiet"]
    assert desk.tracker.overwritten.lost() == []


def test_a_file_without_a_proof_of_its_own_is_kept_as_incomplete_when_it_is_written_over(desk: Desk) -> None:
    desk.write("state.pkl", b"one")
    desk.hear()
    desk.write("state.pkl", b"another")
    assert desk.settle() == ["state.pkl: !proof that it was finished", "state.pkl: quiet"]


def test_a_file_that_is_written_over_is_not_taken_before_its_copy_is_there(desk: Desk) -> None:
    """The file itself can be seen to be whole; but its link would follow the next version."""
    path = desk.write("last.safetensors", safetensors(1))
    told = desk.post.look()
    cut = [seen.kind for seen in told].index("closed")
    desk.tracker.take(told[:cut])
    desk.tracker.glance()
    assert desk.tracker.decide() == []
    desk.tracker.take(told[cut:])
    assert desk.tracker.decide() == []
    desk.tracker.take(desk.post.copies())
    path.write_bytes(safetensors(2))
    assert [content(d)["last.safetensors"][-1] for d in desk.tracker.decide()] == [1]


def test_a_commit_of_a_file_that_is_written_over_waits_for_its_copy(desk: Desk) -> None:
    path = desk.write("last.safetensors", safetensors(1))
    pin = desk.post.pins / "c1"
    assert link_tree(path, pin / path.name)
    desk.tracker.take(desk.post.look())
    decision = desk.tracker.take_commit(Commit(str(path), str(pin), step=1))
    assert decision is not None
    assert decision.waits
    assert desk.tracker.decide() == []
    desk.tracker.take(desk.post.copies())
    path.write_bytes(safetensors(2))
    (decision,) = desk.tracker.decide()
    assert (said(decision), content(decision)["last.safetensors"][-1]) == ("last.safetensors: explicit", 1)
    assert desk.settle() == ["last.safetensors: files"]


def test_commits_of_a_file_that_is_written_over_go_to_the_versions_that_they_were_of(desk: Desk) -> None:
    """All are read late: the links that the commits made all follow the last version by then."""
    commits = []
    for version in range(3):
        path = desk.write("last.safetensors", safetensors(version))
        pin = desk.post.pins / f"c{version}"
        assert link_tree(path, pin / path.name)
        commits.append(Commit(str(path), str(pin), step=version, time_ns=time.time_ns()))
        desk.hear()
    made = [desk.tracker.take_commit(commit) for commit in commits]
    assert [(said(d), d.candidate.commit.step, content(d)["last.safetensors"][-1]) for d in made] == [
        ("last.safetensors: explicit", version, version) for version in range(3)
    ]
    assert desk.settle() == []


def test_a_file_that_was_gone_before_it_could_be_held(desk: Desk) -> None:
    desk.write("step-1.safetensors", safetensors(1)).unlink()
    desk.write("notes.txt", b"").unlink()
    assert desk.settle() == ["step-1.safetensors: gone"]


def test_a_folder_of_which_something_was_missed_is_not_whole(desk: Desk) -> None:
    (desk.root / "checkpoint-5").mkdir()
    desk.hear()
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    told = desk.post.look()
    desk.write("checkpoint-5/optimizer.safetensors", safetensors(2))
    shutil.rmtree(desk.root / "checkpoint-5")
    desk.tracker.take(told + desk.post.look())
    assert desk.settle() == ["checkpoint-5: !optimizer.safetensors, deleted before it could be kept"]


def test_a_folder_that_was_first_seen_amid_its_removal_is_not_whole(desk: Desk) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        desk.write(f"checkpoint-5/{name}", safetensors(1))
    (desk.root / "checkpoint-5" / "optimizer.safetensors").unlink()
    told = desk.post.look()
    shutil.rmtree(desk.root / "checkpoint-5")
    desk.tracker.take(told + desk.post.look())
    assert desk.settle() == ["checkpoint-5: !something in it may have been deleted before it could be kept"]


def test_a_folder_with_all_that_the_one_before_it_had_is_whole_however_late_it_was_seen(desk: Desk) -> None:
    names = ("model.safetensors", "optimizer.safetensors", "trainer_state.json")
    for step, whole in ((5, True), (6, True), (7, False)):
        for name in names:
            desk.write(f"checkpoint-{step}/{name}", b"{}" if name.endswith("json") else safetensors(step))
        if step == 5:
            assert desk.settle() == ["checkpoint-5: hf-trainer"]
        if not whole:
            (desk.root / "checkpoint-7" / "optimizer.safetensors").unlink()
        told = desk.post.look()
        shutil.rmtree(desk.root / f"checkpoint-{step}")
        desk.tracker.take(told + desk.post.look())
    assert desk.settle() == [
        "checkpoint-6: hf-trainer",
        "checkpoint-7: !something in it may have been deleted before it could be kept",
    ]


def test_a_part_that_was_first_seen_amid_its_removal_leaves_its_doubt_behind(desk: Desk) -> None:
    (desk.root / "checkpoint-5").mkdir()
    desk.hear()
    for name in ("model.safetensors", "deep/a.safetensors", "deep/b.safetensors"):
        desk.write(f"checkpoint-5/{name}", safetensors(1))
    (desk.root / "checkpoint-5" / "deep" / "a.safetensors").unlink()
    desk.hear()
    shutil.rmtree(desk.root / "checkpoint-5" / "deep")
    assert desk.turn() == []
    shutil.rmtree(desk.root / "checkpoint-5")
    assert desk.settle() == ["checkpoint-5: !something in it may have been deleted before it could be kept"]


def test_a_folder_that_got_its_name_before_it_was_looked_into(desk: Desk) -> None:
    desk.write("tmp-checkpoint-5/model.safetensors", safetensors(1))
    desk.write("tmp-checkpoint-5/trainer_state.json", b"{}")
    (desk.root / "tmp-checkpoint-5").rename(desk.root / "checkpoint-5")
    desk.hear()
    shutil.rmtree(desk.root / "checkpoint-5")
    assert desk.settle() == ["checkpoint-5: hf-trainer"]


def test_a_folder_that_is_made_anew_unseen_was_there_before(desk: Desk) -> None:
    for version in (1, 2):
        desk.write("checkpoint-5/model.safetensors", safetensors(version))
        if version == 1:
            shutil.rmtree(desk.root / "checkpoint-5")
    made = [d for _ in range(35) for d in desk.decisions()]
    assert [said(d) for d in made] == ["checkpoint-5: gone", "checkpoint-5: files"]
    assert content(made[1])["model.safetensors"][-1] == 2


def test_what_was_committed_and_deleted_before_it_could_be_looked_into(desk: Desk) -> None:
    folder = desk.write("checkpoint-5/model.safetensors", safetensors(1)).parent
    pin = desk.post.pins / "c1"
    assert link_tree(folder, pin / folder.name)
    shutil.rmtree(folder)
    desk.hear()
    desk.tracker.glance()
    decision = desk.tracker.take_commit(Commit(str(folder), str(pin), step=5))
    assert decision is not None
    assert said(decision) == "checkpoint-5: explicit"
    assert desk.settle() == []


def test_a_folder_that_nobody_could_look_into_is_gone(desk: Desk) -> None:
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    shutil.rmtree(desk.root / "checkpoint-5")
    assert desk.settle() == ["checkpoint-5: gone"]


def test_a_temporary_file_that_was_missed_is_no_part_of_its_folder(desk: Desk) -> None:
    (desk.root / "checkpoint-5").mkdir()
    desk.hear()
    desk.write("checkpoint-5/scratch", b"x").unlink()
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    desk.hear()
    shutil.rmtree(desk.root / "checkpoint-5")
    assert desk.settle() == ["checkpoint-5: files"]


def test_what_the_disk_shows_first_is_not_lost_when_it_is_told_late(desk: Desk) -> None:
    """A look at the disk finds a folder gone of which not even the beginning has been told yet."""
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    desk.hear()
    desk.write("checkpoint-5/optimizer.safetensors", safetensors(2))
    told = desk.post.look()
    shutil.rmtree(desk.root / "checkpoint-5")
    later = iter([told, desk.post.look()])
    desk.tracker.look(lambda: next(later, []))
    desk.tracker.decide()
    assert desk.settle() == ["checkpoint-5: files"]


def test_what_nobody_told_is_found_on_the_disk(desk: Desk) -> None:
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    desk.post.look()  # it is told, but nobody listens
    assert desk.tracker.look()
    assert desk.settle() == ["checkpoint-5: files"]
    shutil.rmtree(desk.root / "checkpoint-5")
    desk.post.look()
    assert not desk.tracker.look()
    assert not desk.tracker.view.exists(str(desk.root / "checkpoint-5"))


def test_all_is_told_anew_after_events_were_dropped(desk: Desk) -> None:
    desk.write("checkpoint-5/model.safetensors", safetensors(1))
    desk.hear()
    desk.write("checkpoint-6/model.safetensors", safetensors(1))
    shutil.rmtree(desk.root / "checkpoint-5")
    desk.post.sentry.begin_anew()
    assert desk.settle() == ["checkpoint-5: files", "checkpoint-6: files"]


def test_what_was_held_when_all_died_is_taken_over(desk: Desk) -> None:
    gone = desk.write("checkpoint-5/model.safetensors", safetensors(1)).parent
    desk.write("last.safetensors", safetensors(2))
    desk.tracker.take(desk.post.look())
    desk.post.copies()
    shutil.rmtree(gone)
    desk.write("last.safetensors", safetensors(3))
    desk.tracker = desk.fresh()
    desk.tracker.recover()
    desk.post.sentry.begin_anew()
    desk.hear()
    made = [d for _ in range(35) for d in desk.decisions()]
    assert [(d.candidate.name, next(iter(content(d).values()))[-1]) for d in made] == [
        ("last.safetensors", 2), ("checkpoint-5", 1), ("last.safetensors", 3),
    ]  # fmt: skip
    assert desk.held() == []


def test_what_a_sentry_that_died_held_and_never_told_is_taken_over(desk: Desk) -> None:
    desk.write("step-1.safetensors", safetensors(1))
    desk.hear()
    gone = desk.write("checkpoint-5/model.safetensors", safetensors(2)).parent
    desk.write("step-1.safetensors.tmp", safetensors(3)).replace(desk.root / "step-1.safetensors")
    desk.post.look()  # it is dealt with, but nobody hears of it
    shutil.rmtree(gone)
    (desk.root / "step-1.safetensors").unlink()
    desk.tracker.take([Sighting(sighting.DIED, time.monotonic())])
    desk.post.sentry.begin_anew()
    made = [d for _ in range(35) for d in desk.decisions()]
    assert sorted((d.candidate.name, next(iter(content(d).values()))[-1]) for d in made) == [
        ("checkpoint-5", 2), ("step-1.safetensors", 1), ("step-1.safetensors", 3),
    ]  # fmt: skip


def test_a_copy_that_a_sentry_that_died_was_making_is_not_waited_for(desk: Desk) -> None:
    desk.write("last.safetensors", safetensors(1))
    told = desk.post.look()
    assert told[-1].coming
    desk.tracker.take([*told, Sighting(sighting.DIED, time.monotonic())])
    assert [said(d) for d in desk.tracker.decide(ended=True)] == ["last.safetensors: files"]


def test_what_is_stored_is_held_no_more(desk: Desk) -> None:
    path = desk.write("checkpoint-5/model.safetensors", safetensors(1))
    desk.write("runs/events.out", b"log")
    desk.write("tmp-checkpoint-6/model.safetensors", safetensors(1))
    (decision,) = [d for _ in range(35) for d in desk.decisions()]
    decision.candidate.discard()
    assert path.stat().st_nlink == 1
    names = {hold.name.partition("~")[2] for hold in desk.held()}
    assert names <= {"tmp-checkpoint-6%2Fmodel.safetensors"}
