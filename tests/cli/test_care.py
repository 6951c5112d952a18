"""Settings, space, the machine's health, and looking inside files."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import blake3
import numpy as np
import pytest

import gpu_train
from gpu_train_cas.frame import Kind
from gpu_train_cas.pack import PackReader
from gpu_train_cli import doctor


def test_config_says_where_each_setting_came_from(program) -> None:
    (program.cwd / "gpu-train.toml").write_text("[defaults]\ntrash_days = 3\n")
    read = json.loads(program("config", "show", "--origin", "-o", "json").stdout)
    settings = {row["setting"]: row for row in read["settings"]}
    assert settings["defaults.trash_days"]["value"] == 3.0
    assert settings["defaults.trash_days"]["origin"] == str(program.cwd / "gpu-train.toml")
    assert settings["defaults.provider"]["origin"] == "default"
    assert "ORIGIN" in program("config", "--origin").stdout
    assert "ORIGIN" not in program("config").stdout
    (program.cwd / "gpu-train.toml").write_text("[defaults]\ntrash_day = 3\n")
    assert "did you mean 'trash_days'?" in program("config", code=2).stderr


def test_home_and_debug_may_stand_before_or_behind(program, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for arguments in (["--home", other, "config"], ["config", "show", "--home", other]):
        assert json.loads(program(*arguments, "-o", "json").stdout)["home"] == str(other)
    assert program("--debug", "jobs", "show", "x", code=3).stderr.startswith("Traceback")
    assert program("jobs", "show", "x", "--debug", code=3).stderr.startswith("Traceback")
    assert program("jobs", "show", "x", code=3).stderr.startswith("gpu-train: error: no job 'x'")


def test_stats_of_all_and_of_a_job(trained) -> None:
    program = trained.program
    read = json.loads(program("stats", "-o", "json").stdout)
    assert read["records"] == 3
    assert read["original_bytes"] == sum(len(data) for data in trained.files.values())
    assert read["original_bytes"] >= read["unique_bytes"] > read["stored_bytes"] > 0
    assert sum(codec["original_bytes"] for codec in read["codecs"].values()) == read["unique_bytes"]
    assert json.loads(program("stats", "demo", "-o", "json").stdout) == {**read, "job_id": "demo-abcdef"}
    assert sum(one["unique_bytes"] for one in read["classes"].values()) == read["unique_bytes"]
    assert sum(one["original_bytes"] for one in read["classes"].values()) == read["original_bytes"]
    assert "deduplication saves" in program("stats").stdout
    assert program("stats", "absent", code=3).stdout == ""


def test_doctor_finds_a_sound_home_and_names_the_next_step_for_a_broken_one(trained, tmp_path: Path) -> None:
    program = trained.program
    states = {row["check"]: row["state"] for row in json.loads(program("doctor", "-o", "json").stdout)["findings"]}
    assert [states[check] for check in ("home", "filesystem", "registry", "stale readers")] == ["ok"] * 4
    (program.home / "registry" / "data.mdb").write_bytes(b"no registry" * 1000)
    broken = json.loads(program("doctor", "-o", "json", code=1).stdout)["findings"]
    found = next(row for row in broken if row["check"] == "registry")
    assert found["state"] == "failed"
    assert "repair --rebuild-registry" in found["next_step"]


def test_doctor_says_what_only_some_commands_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {finding.check: finding for check in doctor.CHECKS for finding in check(tmp_path / "home")}
    assert findings["rsync"].state == "warning"
    assert findings["rsync"].next_step == "`apt install rsync`; only jobs on other machines need it"
    assert findings["home"].found == f"{tmp_path / 'home'} (not made yet)"


def test_debug_looks_inside_packs_and_records(trained) -> None:
    program = trained.program
    pack = max(program.home.rglob("*.pack"), key=lambda path: path.stat().st_size)
    frames = json.loads(program("debug", "pack", pack, "-o", "json").stdout)["frames"]
    assert {frame["kind"] for frame in frames} >= {"block"}
    assert frames == json.loads(program("debug", "pack", pack, "--scan", "-o", "json").stdout)["frames"]
    digests = program("debug", "records", "--kind", "checkpoint", "-q").stdout.split()
    assert len(digests) == 3
    assert json.loads(program("debug", "record", digests[0][:12]).stdout)["owner"] == "demo-abcdef"
    assert program("debug", "record", "ffffffffffff", code=3).stdout == ""
    damaged = pack.read_bytes()[:-10]
    broken = program.cwd / "broken.pack"
    broken.write_bytes(damaged)
    assert program("debug", "pack", broken, code=4).stderr.startswith("gpu-train: error: ")
    assert len(json.loads(program("debug", "pack", broken, "--scan", "-o", "json").stdout)["frames"]) == len(frames)


def test_debug_hashes_and_lists_tensors(program) -> None:
    np.save(program.cwd / "weights.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    data = (program.cwd / "weights.npy").read_bytes()
    assert program("debug", "hash", "weights.npy").stdout == f"{blake3.blake3(data).hexdigest()}  weights.npy\n"
    read = json.loads(program("debug", "tensors", "weights.npy", "-o", "json").stdout)
    assert read["format"] == "npy"
    assert [(row["shape"], row["size_bytes"]) for row in read["tensors"]] == [([2, 3], 24)]
    (program.cwd / "plain.txt").write_text("no tensors")
    assert program("debug", "tensors", "plain.txt", code=3).stdout == ""


READ_ONLY = """
mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && echo mounted >&2 && exec "$@"
"""


def on_read_only_home(program, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where the home lies on a read-only filesystem; skips where that cannot be made."""
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", READ_ONLY, program.home, program.script, *arguments],
        env=program.environment(),
        cwd=program.cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stderr.startswith("mounted\n"):
        pytest.skip(f"no read-only mount can be made here: {done.stderr.strip()}")
    return done


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_home_that_cannot_be_written_can_still_be_read(trained) -> None:
    program = trained.program
    assert len(on_read_only_home(program, "checkpoints", "-q").stdout.split()) == 3
    assert on_read_only_home(program, "checkpoints", "cat", "demo@step:200/sub/rng.pth").stdout == "r" * 10
    assert json.loads(on_read_only_home(program, "verify", "-o", "json").stdout)["ok"] is True
    assert json.loads(on_read_only_home(program, "status", "-o", "json").stdout)["jobs"][0]["job_id"] == "demo-abcdef"
    findings = json.loads(on_read_only_home(program, "doctor", "-o", "json").stdout)["findings"]
    states = {row["check"]: row["state"] for row in findings}
    assert (states["home"], states["registry"]) == ("failed", "ok")
    refused = on_read_only_home(program, "run", "--", "true")
    assert refused.returncode == 1
    assert "the filesystem is read-only; remount it or set GPU_TRAIN_HOME" in refused.stderr


def damage(home: Path) -> None:
    """Flip one byte in the payload of the largest frame of content of each pack."""
    for path in home.rglob("*.pack"):
        with PackReader(path) as reader:
            content = [entry for entry in reader.index() if entry.header.kind is not Kind.ROW]
        if not content:
            continue
        largest = max(content, key=lambda entry: entry.header.stored_bytes)
        with path.open("r+b") as pack:
            pack.seek(largest.end - 1)
            last = pack.read(1)
            pack.seek(largest.end - 1)
            pack.write(bytes([last[0] ^ 1]))


def test_verify_reads_all_and_names_what_damage_hits(trained) -> None:
    program = trained.program
    sound = json.loads(program("verify", "-o", "json").stdout)
    assert (sound["ok"], sound["complete"], sound["records"], sound["damaged"]) == (True, True, 3, [])
    assert program("verify").stderr.endswith(": all of it is as it was stored\n")
    assert json.loads(program("checkpoints", "verify", "demo@best", "-o", "json").stdout)["ok"] is True
    part = json.loads(program("verify", "--sample", "1%", "--max-duration", "10m", "-o", "json").stdout)
    assert part["packs"] < part["packs_total"]
    damage(program.home)
    broken = json.loads(program("verify", "-o", "json", code=4).stdout)
    assert broken["ok"] is False
    assert {row["name"] for row in broken["damaged"] if row["what"] == "checkpoint"} == {
        f"demo-abcdef@checkpoint-{step}" for step in (200, 500, 1000)
    }
    assert "finding" in program("checkpoints", "verify", "demo", code=4).stderr
    assert program("checkpoints", "cat", "demo@latest/model.safetensors", code=4).stderr.startswith("gpu-train: error")


@pytest.mark.parametrize("arguments", [["--sample", "0"], ["--sample", "x"], ["--max-duration", "soon"]], ids=" ".join)
def test_limits_that_make_no_sense(program, arguments: list[str]) -> None:
    assert "; write " in program("verify", *arguments, code=2).stderr


def test_gc_says_what_it_would_do_and_does_it(trained) -> None:
    program = trained.program
    with gpu_train.Workspace.open(program.home) as workspace:
        for digest, _ in list(workspace.store.records("checkpoint")):
            workspace.store.trash(digest)
    early = json.loads(program("gc", "--dry-run", "-o", "json").stdout)
    assert (early["dry_run"], early["records"]) == (True, [])
    (program.cwd / "gpu-train.toml").write_text("[defaults]\ntrash_days = 0\n")
    would = json.loads(program("gc", "--dry-run", "-o", "json").stdout)
    assert len(would["records"]) == 3
    assert would["blocks"] > 0
    assert "space would be freed" in program("gc", "-n").stdout
    done = json.loads(program("gc", "-o", "json").stdout)
    assert (done["dry_run"], sorted(done["records"])) == (False, sorted(would["records"]))
    assert json.loads(program("stats", "-o", "json").stdout)["original_bytes"] == 0


def test_repair_brings_a_lost_registry_back(trained) -> None:
    program = trained.program
    before = program("checkpoints", "-o", "json").stdout
    assert "say what to repair: --rebuild-registry" in program("repair", code=2).stderr
    shutil.rmtree(program.home / "registry")
    findings = json.loads(program("doctor", "-o", "json", code=1).stdout)["findings"]
    assert next(row for row in findings if row["check"] == "registry")["state"] == "failed"
    assert "repair --rebuild-registry" in program("jobs", code=4).stderr
    report = json.loads(program.spawned("repair", "--rebuild-registry", "-o", "json").stdout)
    assert (report["records"], report["problems"], report["old_registry"]) == (3, [], None)
    assert program("checkpoints", "-o", "json").stdout == before
    assert "old registry" in program.spawned("repair", "--rebuild-registry", "--check").stdout
    assert program("checkpoints", "-o", "json").stdout == before


def test_repair_without_packs(program) -> None:
    assert "there are no packs here" in program("repair", "--rebuild-registry", code=3).stderr


@pytest.mark.parametrize("command", ["hash", "tensors", "pack"])
def test_debug_refuses_what_has_no_end(program, command: str) -> None:
    os.mkfifo(program.cwd / "pipe")
    for path in ("pipe", "/dev/zero"):
        assert "is neither a regular file nor a link to one" in program("debug", command, path, code=2).stderr
