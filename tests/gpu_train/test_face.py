"""The package's public face."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import gpu_train


def test_every_name_can_be_had() -> None:
    for name in gpu_train.__all__:
        assert getattr(gpu_train, name) is not None
    assert gpu_train.__all__ == sorted(set(gpu_train.__all__))
    assert dir(gpu_train) == gpu_train.__all__


def test_functions_stay_functions_when_modules_are_loaded() -> None:
    """A module named like a function would hide it on the package."""
    for module in pkgutil.walk_packages(gpu_train.__path__, "gpu_train."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in gpu_train.__all__:
        value = getattr(gpu_train, name)
        assert inspect.ismodule(value) == (name in ("data", "retention", "sinks")), name


def test_names_have_docstrings() -> None:
    for name in gpu_train.__all__:
        assert inspect.getdoc(getattr(gpu_train, name)), name


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'gpu_train' has no attribute 'nothing'"):
        gpu_train.nothing  # noqa: B018
