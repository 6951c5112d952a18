"""Packages that load a module with its first name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("gpu_train", "gpu_train.tables", "gpu_train_cas", "gpu_train_cas.formats")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_can_be_had(name: str) -> None:
    package = importlib.import_module(name)
    for one in package.__all__:
        assert getattr(package, one) is not None
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def loaded_by(code: str) -> set[str]:
    """The modules of the engine in a new process that has run some code."""
    code += "\nimport sys\nprint(*(name for name in sys.modules if name.startswith('gpu_train_cas.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.removeprefix("gpu_train_cas.") for name in done.stdout.split()}


def test_a_module_is_loaded_with_its_first_name() -> None:
    assert loaded_by("import gpu_train_cas") == {"lazy"}
    assert loaded_by("from gpu_train_cas import Kind") == {"lazy", "digest"}
    assert {"formats.npy", "formats.dcp", "formats.pickle"}.isdisjoint(loaded_by("from gpu_train_cas import Tensor"))
    asked = loaded_by("from gpu_train_cas.formats import BytesSource, layout; layout(BytesSource(b'\\x93NUMPY'))")
    assert "formats.npy" in asked
    assert "formats.gguf" not in asked


def test_names_that_are_called_otherwise_in_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sample_of_lazy"
    folder.mkdir()
    (folder / "inner.py").write_text("def open_it(): return 'opened'\nleft = 1\n")
    (folder / "whole.py").write_text("value = 2\n")
    (folder / "__init__.py").write_text(
        "from gpu_train_cas.lazy import lazy_names\n"
        "__all__ = ['open', 'left', 'whole']\n"
        "__getattr__, __dir__ = lazy_names(__name__, {'sample_of_lazy.inner': ('open_it', 'left')},\n"
        "    renamed={'open': 'open_it'}, modules=('whole',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("sample_of_lazy")
    try:
        assert "open" not in vars(package)
        assert (package.open(), package.left, package.whole.value) == ("opened", 1, 2)
        assert vars(package)["open"] is package.open
        assert dir(package) == ["left", "open", "whole"]
        with pytest.raises(AttributeError, match="'open_it'"):
            package.open_it  # noqa: B018
    finally:
        for name in [name for name in sys.modules if name.startswith("sample_of_lazy")]:
            del sys.modules[name]
