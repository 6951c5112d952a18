"""Packages that load a module when one of its names is first used (PEP 562), so that a program pays for what it needs.

A package's `__init__` imports its names for type checkers only, and says for programs where they are:

    if TYPE_CHECKING:
        from package.module import Name

    __all__ = ["Name"]
    __getattr__, __dir__ = lazy_names(__name__, {"package.module": ("Name",)})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, places: Mapping[str, Iterable[str]], *, renamed: Mapping[str, str] | None = None,
    modules: Iterable[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:  # fmt: skip
    """The `__getattr__` of a package, and a `__dir__` that lists its `__all__`.

    Args:
        package: its `__name__`.
        places: which names each module gives. None may be called like a module of the package.
        renamed: what a name is called in its module, where that is something else.
        modules: modules of the package that are names of it themselves.
    """
    where = {name: (module, name) for module, names in places.items() for name in names}
    where |= {name: where.pop(own) for name, own in (renamed or {}).items()}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = where[name]
        value = getattr(import_module(module), own)
        setattr(sys.modules[package], name, value)  # next time it is found without asking here
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
