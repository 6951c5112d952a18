"""The sentry, in time and late: what it holds, what it tells, and that nothing goes in silence."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest

from gpu_train.capture.watch import sighting


def hold_of(told: list, name: str) -> Path:
    """What holds the file that was told last under a name."""
    return Path([seen.hold for seen in told if seen.name == name and seen.hold][-1])


def test_a_file_that_is_deleted_later_is_held(post, short) -> None:
    path = post.root / "ckpt-1.pt"
    path.write_bytes(b"weights")
    told = post.look()
    path.unlink()
    assert short(told + post.look()) == ["file ckpt-1.pt", "closed ckpt-1.pt", "deleted ckpt-1.pt"]
    assert hold_of(told, "ckpt-1.pt").read_bytes() == b"weights"


def test_a_file_that_is_gone_already_is_told_all_the_same(post, short) -> None:
    path = post.root / "ckpt-1.pt"
    path.write_bytes(b"weights")
    path.unlink()
    assert short(post.look()) == ["file ckpt-1.pt!", "deleted ckpt-1.pt"]


def test_files_in_a_folder_that_was_made_before_it_could_be_watched(post, short) -> None:
    folder = post.root / "checkpoint-5" / "deep"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"deep")
    (folder.parent / "w.bin").write_bytes(b"weights")
    told = post.look()
    assert short(told)[:4] == ["folder checkpoint-5", "file w.bin", "folder deep", "file w.bin"]
    shutil.rmtree(folder.parent)
    assert {Path(seen.hold).read_bytes() for seen in told if seen.hold} == {b"weights", b"deep"}


def test_a_folder_that_is_gone_already_is_told_with_why(post) -> None:
    (post.root / "checkpoint-5").mkdir()
    (post.root / "checkpoint-5" / "w.bin").write_bytes(b"weights")
    shutil.rmtree(post.root / "checkpoint-5")
    (folder, deleted) = post.look()
    assert (folder.kind, folder.child, deleted.kind) == (sighting.FOLDER, 0, sighting.DELETED)
    assert folder.why == "it was deleted before it could be looked into"


def test_a_folder_that_was_made_anew_unseen_is_told_twice(post, short) -> None:
    for content in (b"one", b"two"):
        (post.root / "checkpoint-last").mkdir()
        (post.root / "checkpoint-last" / "w.bin").write_bytes(content)
        if content == b"one":
            shutil.rmtree(post.root / "checkpoint-last")
    told = post.look()
    assert short(told) == ["folder checkpoint-last", "deleted checkpoint-last", "folder checkpoint-last", "file w.bin"]
    assert [seen.why for seen in told[:3]] == ["it was deleted before it could be looked into", "", ""]


def test_a_folder_that_may_be_amid_its_removal_when_it_is_first_seen(post) -> None:
    """Nothing shows that `a.bin` was there; so nobody may take what is left for all of it."""
    folder = post.root / "checkpoint-5"
    folder.mkdir()
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(b"weights")
    (folder / "a.bin").unlink()
    assert not any(seen.why for seen in post.look())
    (folder / "b.bin").unlink()
    assert [(seen.kind, seen.why) for seen in post.look()] == [
        (sighting.FOLDER, "something in it may have been deleted before it could be kept"),
        (sighting.DELETED, ""),
    ]


def test_a_folder_that_is_written_to_after_it_was_first_seen_is_above_suspicion(post) -> None:
    folder = post.root / "checkpoint-5"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"weights")
    post.look()
    (folder / "b.bin").write_bytes(b"weights")
    post.look()
    shutil.rmtree(folder)
    assert not any(seen.why for seen in post.look())


def test_a_moved_folder_keeps_its_number_and_is_watched_on(post, short) -> None:
    (post.root / "tmp-checkpoint-5").mkdir()
    (before,) = post.look()
    (post.root / "tmp-checkpoint-5").rename(post.root / "checkpoint-5")
    (post.root / "checkpoint-5" / "w.bin").write_bytes(b"weights")
    moved, folder, file, _ = post.look()
    assert short([moved, folder]) == ["moved tmp-checkpoint-5", "folder checkpoint-5"]
    assert moved.cookie == folder.cookie != 0
    assert before.child == folder.child == file.folder


def test_what_is_moved_in_and_out(post, short, tmp_path: Path) -> None:
    (tmp_path / "new.ckpt").write_bytes(b"weights")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "w.bin").write_bytes(b"run")
    (tmp_path / "new.ckpt").rename(post.root / "step-1.ckpt")
    (tmp_path / "run").rename(post.root / "run")
    told = post.look()
    assert short(told) == ["file step-1.ckpt", "folder run", "file w.bin"]
    (post.root / "run").rename(tmp_path / "away")
    (post.root / "step-1.ckpt").rename(tmp_path / "away.ckpt")
    assert short(post.look()) == ["moved run", "moved step-1.ckpt"]
    assert hold_of(told, "step-1.ckpt").read_bytes() == b"weights"


def test_a_file_that_has_been_replaced_since_it_was_moved_in_is_still_held(post) -> None:
    """It was caught under its first name; when its move is read, the next one has its place."""
    (post.root / "last.tmp").write_bytes(b"one")
    post.look()
    (post.root / "last.tmp").rename(post.root / "last.ckpt")
    (post.root / "last.tmp").write_bytes(b"two")
    (post.root / "last.tmp").rename(post.root / "last.ckpt")
    told = [seen for seen in post.look() if seen.name == "last.ckpt"]
    assert [Path(seen.hold).read_bytes() for seen in told] == [b"one", b"two", b"two"]


def test_one_that_was_replaced_before_it_could_be_seen_is_told_as_lost(post) -> None:
    for content in (b"one", b"two"):
        (post.root / "last.tmp").write_bytes(content)
        (post.root / "last.tmp").rename(post.root / "last.ckpt")
    told = post.look()
    assert hold_of(told, "last.ckpt").read_bytes() == b"two"
    assert [seen.why for seen in told if seen.kind == sighting.OVERWRITTEN] == ["the next version came at once"]


def test_one_that_was_deleted_and_made_anew_before_it_could_be_seen_is_told_as_lost(post) -> None:
    path = post.root / "ckpt-1.pt"
    path.write_bytes(b"one")
    path.unlink()
    path.write_bytes(b"two")
    told = post.look()
    assert sum(seen.kind == sighting.OVERWRITTEN for seen in told) == 1


def test_one_that_was_made_anew_after_it_was_given_back_is_not_lost(post) -> None:
    """The number of its inode may have come again by then."""
    path = post.root / "ckpt-1.pt"
    path.write_bytes(b"one")
    hold = hold_of(post.look(), "ckpt-1.pt")
    number = path.stat().st_ino
    hold.unlink()
    path.unlink()
    path.write_bytes(b"two")
    if path.stat().st_ino != number:
        pytest.skip("numbers do not come again here")
    assert not any(seen.kind == sighting.OVERWRITTEN for seen in post.look())


def test_no_copy_is_taken_for_exact_when_closings_may_have_been_missed(post) -> None:
    (post.root / "ckpt.pt").write_bytes(b"one")
    post.look()
    post.sentry.begin_anew()
    (lost,) = [seen for seen in post.copies() if seen.kind in (sighting.KEPT, sighting.OVERWRITTEN)]
    assert lost.kind == sighting.OVERWRITTEN
    number = (post.root / "ckpt.pt").stat().st_ino
    assert {hold.stat().st_ino for hold in (post.pins / "caught").iterdir()} == {number}


def test_folders_that_cannot_be_watched_are_told_at_once(post, short) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open("/dev/null", os.O_RDONLY)
    try:
        (post.root / "checkpoint-5").mkdir()
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        told = post.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(spare)
    assert short(told) == ["folder checkpoint-5", "blind"]
    assert "ulimit -n" in told[1].why
    assert post.sentry.is_blind


def test_one_that_was_written_over_before_it_could_be_seen_is_told_as_lost(post) -> None:
    for content in (b"one", b"two", b"three"):
        (post.root / "ckpt.pt").write_bytes(content)
    told = post.look()
    lost = [seen.version for seen in told if seen.kind == sighting.OVERWRITTEN]
    told = post.copies(3)
    assert len(lost) == 2
    assert [Path(seen.hold).read_bytes() for seen in told if seen.kind == sighting.KEPT] == [b"three"]


def test_a_file_with_a_fixed_name_is_copied_at_each_closing(post) -> None:
    path = post.root / "ckpt.pt"
    copies = []
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        (closed,) = [seen for seen in post.look() if seen.kind == sighting.CLOSED]
        assert closed.coming
        (kept,) = post.copies()
        assert kept.version == closed.version
        copies.append(Path(kept.hold))
    assert [copy.read_bytes() for copy in copies] == [b"one", b"two"]
    assert copies[0].stat().st_mtime_ns == 10**18


def test_a_file_with_a_step_in_its_name_is_copied_once_it_is_written_over(post) -> None:
    path = post.root / "step-100.ckpt"
    path.write_bytes(b"one")
    assert [seen.coming for seen in post.look() if seen.kind == sighting.CLOSED] == [False]
    path.write_bytes(b"two!")
    assert [seen.coming for seen in post.look() if seen.kind == sighting.CLOSED] == [True]
    assert [Path(seen.hold).read_bytes() for seen in post.copies()] == [b"two!"]


def test_a_file_that_is_written_while_it_is_copied_has_no_copy(post) -> None:
    path = post.root / "ckpt.pt"
    path.write_bytes(b"one")
    with open(path, "r+b") as writer:
        writer.write(b"half")
        writer.flush()
        post.look()
        writer.write(b" and half")
    assert [seen.kind for seen in post.copies(2)] == [sighting.CLOSED, sighting.OVERWRITTEN, sighting.KEPT]


def test_logs_are_not_copied(post) -> None:
    for _ in range(3):
        with open(post.root / "metrics.csv", "a") as file:
            file.write("1,2\n")
        assert not any(seen.coming for seen in post.look())


def test_the_root_itself_may_be_replaced(post, short) -> None:
    shutil.rmtree(post.root)
    post.root.mkdir()
    (post.root / "w-1.bin").write_bytes(b"weights")
    assert short(post.look())[:3] == ["deleted checkpoints", "folder checkpoints", "file w-1.bin"]


def test_a_word_in_the_control_folder_wakes_the_agent(post) -> None:
    (post.control / "commits.read").write_text("5")
    assert post.look() == []
    (post.control / "commits.jsonl").write_text("{}\n")
    assert {seen.kind for seen in post.look()} == {sighting.POKE}


def test_names_of_all_kinds(post) -> None:
    odd = os.fsencode(post.root) + b"/w\xfe\n%2F~.bin"
    with open(odd, "wb") as file:
        file.write(b"odd")
    (post.root / "link").symlink_to("nowhere")
    os.mkfifo(post.root / "pipe")
    told = {seen.name: seen for seen in post.look() if seen.kind != sighting.CLOSED}
    assert Path(told[os.fsdecode(b"w\xfe\n%2F~.bin")].hold).read_bytes() == b"odd"
    assert (told["link"].kind, told["pipe"].kind) == (sighting.OTHER, sighting.OTHER)


def test_more_events_than_the_kernel_keeps(post, short) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    path = post.root / "ckpt-1.pt"
    for _ in range(limit // 3 + 100):
        path.write_bytes(b"")
        path.unlink()
    (post.root / "here.pt").write_bytes(b"still there")
    told = post.look()
    tail = short(told)[[seen.kind for seen in told].index(sighting.NOTICE) :]
    assert tail == ["notice", "begin", "folder checkpoints", "file here.pt", "end"]
    (post.root / "later-1.pt").write_bytes(b"watched again")
    assert short(post.look()) == ["file later-1.pt", "closed later-1.pt"]


def test_nothing_is_told_while_nothing_happens(post) -> None:
    (post.root / "ckpt-1.pt").write_bytes(b"weights")
    post.look()
    (post.root / "ckpt-1.pt").read_bytes()
    list(post.root.iterdir())
    assert post.look() == []
