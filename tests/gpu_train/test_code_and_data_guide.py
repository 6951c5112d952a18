from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gpu_train.code import CodeVersions
from gpu_train.data_manifest import DataManifest
from gpu_train.exclude import DEFAULT_FILES, DEFAULT_FOLDERS, DEFAULT_PREFIXES, DEFAULT_SUFFIXES
from gpu_train.listing import COUNT_LIMIT
from gpu_train.workspace import Workspace

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "code-and-data.md"


def test_the_guide_names_every_default_exclude() -> None:
    shown = set(re.findall(r"`([^`]+)`", GUIDE.read_text().partition("### What is left out")[2].partition("```")[0]))
    names = {name.decode() for name in DEFAULT_FOLDERS | DEFAULT_FILES}
    patterns = {"*" + s.decode() for s in DEFAULT_SUFFIXES} | {p.decode() + "*" for p in DEFAULT_PREFIXES}
    assert names | patterns <= shown
    assert f"{COUNT_LIMIT:,} entries" in GUIDE.read_text()


def test_the_guides_commands_compute_a_data_version(workspace: Workspace, tmp_path: Path) -> None:
    data = tmp_path / "data" / "train"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "b c\n").write_text("two")
    (data / "a").write_text("one")
    (data / "empty").touch()
    (data / "linked").symlink_to("a")
    script = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)[-1]
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == workspace.data.register(data, "imdb").version


def test_the_manifest_has_the_keys_of_the_guide(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    version = workspace.data.register(tmp_path / "a", "one")
    table = GUIDE.read_text().partition("### The manifest")[2].partition("A path that")[0]
    keys = {
        key
        for line in table.splitlines()
        for key in re.findall(r"`(\w+)`", line.split("|")[1:2][0] if "|" in line else "")
    }
    text = (workspace.home.data / "one" / f"{version.version}.json").read_bytes()
    assert DataManifest.from_json(text).version() == version.version
    assert set(re.findall(r'^ "(\w+)":', text.decode(), re.MULTILINE)) | {"schema_version"} == keys


def test_the_example_ignore_file_is_valid(workspace: Workspace, tmp_path: Path) -> None:
    example = re.findall(r"```\n(\*\.csv.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    root = tmp_path / "project"
    (root / "wandb").mkdir(parents=True)
    (root / "wandb" / "a").touch()
    (root / "a.csv").touch()
    (root / ".gpu-trainignore").write_text(example)
    code: CodeVersions = workspace.code
    assert code.snapshot(root).files == 2
