"""Little room: a trainer's write never fails by what capture holds or writes, and what is given up for that is told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import gpu_train
from gpu_train import JobStatus, Workspace
from gpu_train.tables.checkpoint import GONE, INCOMPLETE, VERIFIED, Checkpoint

MIB = 1 << 20
WRITING = """
    import hashlib, os, time
    from writing import OUT, safetensors, wait_for_file

    def write(name, size, suffix=""):
        data = safetensors(hash(name) & 0xffff, size // 4)
        with open(OUT / (name + suffix), "wb") as file:
            file.write(data)
        with open("wrote", "a") as file:
            print(name, hashlib.sha256(data).hexdigest(), file=file)

    def wait(condition, seconds):
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            time.sleep(0.005)

    def free():
        disk = os.statvfs(OUT)
        return disk.f_bavail * disk.f_frsize
"""
ROTATING = (
    WRITING
    + """
    SIZE, KEEP = 4 << 20, 2
    for step in range(1, 8):
        # So long takes the training between two saves; capture has it all to make room.
        wait(lambda: step == 1 or free() > SIZE + 65536, 15)
        try:
            write(f"w-{step:04}.safetensors", SIZE)
        except OSError as e:
            print(e.strerror, flush=True)
            raise SystemExit(1)
        has_room = free() > 2 * SIZE + (2 << 20)
        wait(lambda: (OUT / f"w-{step:04}.safetensors").stat().st_nlink == 1, 15 if has_room else 0.3)  # it is stored
        if step > KEEP:
            (OUT / f"w-{step - KEEP:04}.safetensors").unlink()
    print("saved all", flush=True)
    wait_for_file("end")
"""
)
"""A trainer that keeps its last two checkpoints, on a disk with room for them and a few more."""


def rows(home: Path, job_id: str) -> list[Checkpoint]:
    """A job's checkpoints, first captured first."""
    with Workspace.open(home) as workspace:
        return workspace.checkpoints.list(job_id)[::-1]


def events(home: Path, job_id: str, kind: str = "") -> list[str]:
    with Workspace.open(home) as workspace:
        return [e.text for e in workspace.events.list(job_id) if kind in ("", e.kind)]


def status(home: Path, job_id: str) -> JobStatus:
    (found,) = gpu_train.status(job_id, home=home)
    return found


def check_content(home: Path, cwd: Path, kept: list[Checkpoint]) -> None:
    """Everything that is stored is what the trainer wrote, bit for bit."""
    wrote = [line.split() for line in (cwd / "wrote").read_text().splitlines()]
    for row in kept:
        with gpu_train.open(row.ref, home=home) as file:
            assert [row.base_name, hashlib.sha256(file.readall()).hexdigest()] in wrote


@pytest.fixture
def ballast(small_disk, fill):
    """A small disk on which a file of somebody else takes all but so many bytes: `ballast(mib, left)`."""

    def make(mib: int, left: int) -> tuple[Path, Path]:
        disk = small_disk(mib)
        fill(disk / "ballast")
        with open(disk / "ballast", "rb+") as file:
            file.truncate((disk / "ballast").stat().st_size - left)
        return disk, disk / "ballast"

    return make


def test_a_rotating_trainer_never_lacks_room_by_our_use(launch, ballast) -> None:
    disk, foreign = ballast(64, 28 * MIB)
    home = disk / "home"
    launch.env |= {"GPU_TRAIN_HOME": str(home), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2"}
    run = launch.script(ROTATING)
    said, now = run.process.stdout.readline(), status(home, run.job_id)
    foreign.unlink()
    (launch.cwd / "end").touch()
    code, _, err = run.finish()
    assert (said, code) == (b"saved all\n", 0), err
    assert now.reserve_bytes > 4 * MIB
    found = rows(home, run.job_id)
    stored, gone = ([c for c in found if c.state == state] for state in (VERIFIED, GONE))
    names = [f"w-{step:04}.safetensors" for step in range(1, 8)]
    assert sorted(c.name for c in found) == names, events(home, run.job_id)
    assert len(stored) + len(gone) == 7
    assert len(stored) >= 3
    assert gone, "the disk was large enough for all"
    assert [c.name for c in stored][-1] == "w-0007.safetensors"
    check_content(home, launch.cwd, stored)
    told = events(home, run.job_id, "gone")
    for row in gone:
        assert row.proof.startswith("its bytes, which were given up: ")
        assert "the trainer's next save" in row.proof or "capture.max_pin_bytes" in row.proof
        assert row.size_bytes > 4 * MIB
        assert any(t.startswith(f"{row.name} (4.0 MiB) was given up before it could be stored: ") for t in told)
    assert len(told) == len(gone)
    assert any(t.startswith("storing is paused") for t in events(home, run.job_id, "storage"))


def test_without_a_reserve_its_write_fails(launch, ballast) -> None:
    """The same trainer on the same disk: else the test above would prove nothing."""
    disk, foreign = ballast(64, 28 * MIB)
    launch.env |= {
        "GPU_TRAIN_HOME": str(disk / "home"), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2",
        "GPU_TRAIN_CAPTURE_RESERVE_BYTES": "0", "GPU_TRAIN_CAPTURE_MAX_PIN_BYTES": "1 GiB",
    }  # fmt: skip
    run = launch.script(ROTATING.replace("15)", "0.5)"))
    said = run.process.stdout.readline()
    foreign.unlink()
    (launch.cwd / "end").touch()
    assert (said, run.finish()[0]) == (b"No space left on device\n", 1)


def test_a_trainer_that_deletes_first_finds_the_room(launch, ballast) -> None:
    """There is never room for two checkpoints: what it deletes must be free at once, and so is not held before."""
    disk, foreign = ballast(64, 16 * MIB)
    home = disk / "home"
    launch.env |= {"GPU_TRAIN_HOME": str(home), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2"}
    run = launch.script(
        WRITING
        + """
    size = (free() - (1 << 20)) * 2 // 3
    for step in (1, 2):
        write(f"w-{step:04}.safetensors", size)
        path = OUT / f"w-{step:04}.safetensors"
        if step < 2:
            wait(lambda: path.stat().st_nlink > 1, 15)
            wait(lambda: path.stat().st_nlink == 1, 15)
            path.unlink()
    print("saved all", flush=True)
    wait_for_file("end")
    """
    )
    said = run.process.stdout.readline()
    foreign.unlink()
    (launch.cwd / "end").touch()
    code, _, err = run.finish()
    assert (said, code) == (b"saved all\n", 0), err
    found = rows(home, run.job_id)
    names = [f"w-{step:04}.safetensors" for step in (1, 2)]
    assert sorted((c.name, c.state) for c in found) == list(zip(names, [GONE, VERIFIED], strict=True))
    assert all("while nothing held it" in c.proof for c in found if c.state == GONE)
    check_content(home, launch.cwd, [c for c in found if c.state == VERIFIED])


def test_a_disk_that_others_fill(launch, ballast, fill, eventually) -> None:
    disk, foreign = ballast(64, 44 * MIB)
    home = disk / "home"
    launch.env |= {"GPU_TRAIN_HOME": str(home), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2"}
    run = launch.script(
        WRITING
        + """
    write("w-0001.safetensors", 4 << 20)
    print("one", flush=True)
    wait_for_file("two")
    write("w-0002.safetensors", 4 << 20)
    print("two", flush=True)
    wait_for_file("three")
    try:
        write("w-0003.safetensors", 4 << 20)
    except OSError as e:
        print(e.strerror, flush=True)
    wait_for_file("end")
    """
    )
    assert run.process.stdout.readline() == b"one\n"
    eventually(lambda: status(home, run.job_id).counts[VERIFIED] == 1, "the first checkpoint")
    fill(disk / "more")
    with open(disk / "more", "rb+") as file:
        file.truncate((disk / "more").stat().st_size - 5 * MIB)
    (launch.cwd / "two").touch()
    assert run.process.stdout.readline() == b"two\n"
    eventually(lambda: status(home, run.job_id).paused, "a pause")
    now = status(home, run.job_id)
    assert now.paused is not None
    assert now.paused.kept_bytes > 4 * MIB > now.paused.free_bytes
    assert (now.newest and now.newest.name, now.in_hand[0].name) == ("w-0001.safetensors", "w-0002.safetensors")
    assert any("storing is paused" in text and "gpu-train gc" in text for text in now.warnings)
    told = iter(run.process.stderr.readline, b"")
    assert any(line.startswith(b"NOTICE storing is paused") for line in told)

    (launch.cwd / "three").touch()
    assert run.process.stdout.readline() == b"No space left on device\n"
    assert status(home, run.job_id).counts[VERIFIED] == 1
    (disk / "more").unlink()
    foreign.unlink()
    eventually(lambda: status(home, run.job_id).counts[VERIFIED] == 2, "the second checkpoint")
    eventually(lambda: status(home, run.job_id).paused is None, "the end of the pause")
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    found = rows(home, run.job_id)
    assert [(c.name, c.state) for c in found] == [
        ("w-0001.safetensors", VERIFIED), ("w-0002.safetensors", VERIFIED), ("w-0003.safetensors", INCOMPLETE),
    ]  # fmt: skip
    check_content(home, launch.cwd, found[:2])
    with Workspace.open(home) as workspace:
        assert workspace.checkpoints.resolve(run.job_id)[0].name == "w-0002.safetensors"
    assert "there is room again, storing goes on" in events(home, run.job_id, "storage")


def test_pins_are_bounded_and_what_is_given_up_is_told(launch, home, ballast, eventually) -> None:
    """The store is on a disk without room, so that nothing is stored; the trainer has all it needs elsewhere."""
    disk, foreign = ballast(16, 128 << 10)
    home.mkdir()
    (home / "store").symlink_to(disk)
    launch.env |= {"GPU_TRAIN_CAPTURE_RETRY_S": "0.2", "GPU_TRAIN_CAPTURE_MAX_PIN_BYTES": "4.5 MiB"}
    run = launch.script(
        WRITING
        + """
    def await_settled(name):
        wait_for_file(f"settled-{name}")

    data = safetensors(1, 1 << 18)
    (OUT / "half-0001.safetensors").write_bytes(data[:1 << 19])
    print("half", flush=True)
    wait_for_file("half-seen")
    (OUT / "half-0001.safetensors").unlink()
    for version in (1, 2):
        write("ckpt.safetensors", 1 << 20, ".new")
        os.replace(OUT / "ckpt.safetensors.new", OUT / "ckpt.safetensors")
        print("version", flush=True)
        wait_for_file(f"version-{version}")
    for step in (1, 2, 3):
        write(f"w-{step:04}.safetensors", 1 << 20)
    print("all", flush=True)
    wait_for_file("all")
    for path in OUT.iterdir():
        path.unlink()
    wait_for_file("end")
    """
    )

    def settled() -> list[str]:
        return [c.name for c in status(home, run.job_id).in_hand if c.state != "writing"]

    assert run.process.stdout.readline() == b"half\n"
    eventually(lambda: status(home, run.job_id).in_hand, "the first file")
    (launch.cwd / "half-seen").touch()
    for version in (1, 2):
        assert run.process.stdout.readline() == b"version\n"
        eventually(lambda n=version: settled().count("ckpt.safetensors") == n, "a version")
        (launch.cwd / f"version-{version}").touch()
    assert run.process.stdout.readline() == b"all\n"
    eventually(lambda: len(settled()) == 6, "all checkpoints")
    now = status(home, run.job_id)
    assert (now.max_pin_bytes, now.counts[VERIFIED]) == (4.5 * MIB, 0)
    assert now.pins.held_bytes == pytest.approx(1.5 * MIB, rel=0.02)  # the others have their names
    (launch.cwd / "all").touch()
    eventually(lambda: status(home, run.job_id).counts[GONE] == 2, "what is given up")
    assert status(home, run.job_id).pins.held_bytes == pytest.approx(4 * MIB, rel=0.02)
    foreign.unlink()
    eventually(lambda: status(home, run.job_id).counts[VERIFIED] == 4, "the others")
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    found = rows(home, run.job_id)
    gone = [c for c in found if c.state == GONE]
    assert [(c.base_name, round(c.size_bytes / MIB, 1)) for c in gone] == [
        ("half-0001.safetensors", 0.5), ("ckpt.safetensors", 1.0),
    ]  # fmt: skip
    assert all("capture.max_pin_bytes (4.5 MiB)" in c.proof for c in gone)
    stored = [c for c in found if c.state == VERIFIED]
    assert [c.base_name for c in stored] == ["ckpt.safetensors", *(f"w-{n:04}.safetensors" for n in (1, 2, 3))]
    check_content(home, launch.cwd, stored)
    assert len(events(home, run.job_id, "gone")) == 2
    over = [text for text in events(home, run.job_id, "storage") if text.startswith("pins hold")]
    assert len(over) == 1
