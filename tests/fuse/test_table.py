"""The kernel's list of mounts, read without asking the mounts."""

import os
from pathlib import Path

from gpu_train_fuse import table
from gpu_train_fuse.table import State

MOUNTINFO = r"""22 28 0:20 / /proc rw,nosuid - proc proc rw
97 28 0:45 / /home/a\040b/mnt/run-abcdef ro,nosuid,nodev,noatime - fuse.gpu-train gpu-train:run-abcdef@0a1b2c3d ro
98 28 0:46 / /other ro - fuse.sshfs gpu-train:no rw
99 97 0:47 / /x\134y ro - fuse.gpu-train gpu-train:all ro
broken line
"""


def test_only_our_mounts_are_listed_with_their_names_unescaped():
    assert table.parse(MOUNTINFO) == [
        (Path("/home/a b/mnt/run-abcdef"), "run-abcdef", "0a1b2c3d"),
        (Path("/x\\y"), "all", ""),
    ]


def test_the_device_is_that_of_the_uppermost_mount_of_ours(tmp_path):
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTINFO + "100 97 0:48 / /x\\134y ro - fuse.gpu-train gpu-train:all ro\n")
    assert table.device(Path("/home/a b/mnt/run-abcdef"), file) == "0:45"
    assert table.device(Path("/x\\y"), file) == "0:48"
    assert table.device(Path("/other"), file) is None


def test_names_that_are_no_utf8_survive():
    text = os.fsdecode(b"1 2 0:1 / /m/\xff\xfe ro - fuse.gpu-train gpu-train:all ro\n")
    assert os.fsencode(table.parse(text)[0][0]) == b"/m/\xff\xfe"


def test_a_machine_without_proc_has_no_mounts(tmp_path):
    assert table.lines(tmp_path / "mountinfo") == []


def test_a_folder_that_is_no_mount_of_ours_counts_as_live(tmp_path):
    found = table.look(tmp_path, "run")
    assert (found.state, found.pid, found.home) == (State.LIVE, None, None)
