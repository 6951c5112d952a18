"""Settings: where each may be written, which one wins, and where the one in force came from.

Weakest first: built-in defaults, `<home>/config.toml`, the `gpu-train.toml` found upward from the working
directory, `gpu_train.configure(...)`, the environment (`GPU_TRAIN_DEFAULTS_TRASH_DAYS=3` is
`defaults.trash_days`). Every setting is a field of one of the sections in `sections`: its type
is checked, its name must be known.
"""

from __future__ import annotations

import threading
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_train import environment
from gpu_train.credentials.credential import Credential, credentials_of
from gpu_train.home import Home
from gpu_train.retention.setting import Retention
from gpu_train.sections import CREDENTIALS, PROJECTS, READERS, SECTIONS, Capture, Defaults, Run, Sinks
from gpu_train.spelling import near
from gpu_train_cas.errors import UsageError

PROJECT_FILE = "gpu-train.toml"
DEFAULT_ORIGIN = "default"
CONFIGURED_ORIGIN = "gpu_train.configure"
USE = f"{environment.SETTINGS_PREFIX}USE"
"""The variable that hands on what `configure` was told to use."""


class Setting(NamedTuple):
    """One setting in force: `key` is "section.name", `origin` a file, a variable, or "default"."""

    key: str
    value: Any
    origin: str


class Config(NamedTuple):
    """All settings in force, and where each came from."""

    defaults: Defaults = Defaults()
    capture: Capture = Capture()
    run: Run = Run()
    sinks: Sinks = Sinks()
    retention: Retention = Retention()
    projects: Mapping[str, Retention] = {}
    credentials: tuple[Credential, ...] = ()
    use: tuple[str, ...] = ()
    origins: Mapping[str, str] = {}

    @classmethod
    def load(
        cls, home: Home | None = None, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Read all sources.

        Raises:
            UsageError: naming source and key, for an unknown name, a wrong type or a file that is no TOML.
        """
        home = Home.locate() if home is None else home
        env = environment.current() if environ is None else environ
        layers = [_from_file(home.config_file)]
        project = find_project_file(cwd)
        if project is not None:
            layers.append(_from_file(project))
        layers += [_configured.layer(), _from_environment(env)]
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for layer in layers:
            for key, (value, origin) in layer.items():
                values[key], origins[key] = value, origin
        sections = {
            name: section(**{k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{name}.")})
            for name, section in SECTIONS.items()
        }
        projects = {k.split(".", 1)[1]: v for k, v in values.items() if k.startswith(f"{PROJECTS}.")}
        credentials = tuple(v for k, v in values.items() if k.startswith(f"{CREDENTIALS}."))
        use = _configured.use or tuple(filter(None, env.get(USE, "").split(",")))
        return cls(**sections, projects=projects, credentials=credentials, use=use, origins=origins)

    def origin(self, key: str) -> str:
        """Where the setting "section.name" came from."""
        return self.origins.get(key, DEFAULT_ORIGIN)

    def settings(self) -> Iterator[Setting]:
        """Every setting with its value and origin, section by section."""
        for name in SECTIONS:
            section = getattr(self, name)
            for field_name, value in section._asdict().items():
                key = f"{name}.{field_name}"
                yield Setting(key, _shown(value), self.origin(key))
        for project, retention in self.projects.items():
            origin = self.origin(f"{PROJECTS}.{project}")
            for name in retention.to_row():
                yield Setting(f"{PROJECTS}.{project}.retention.{name}", _shown(getattr(retention, name)), origin)
        for credential in self.credentials:
            key = f"{CREDENTIALS}.{credential.name}"
            yield Setting(key, str(credential), self.origin(key))

    def as_environment(self) -> dict[str, str]:
        """Variables by which another process gets the settings that only this one knows; no secret is in them."""
        values = {f"{name}.{key}": v for name in SECTIONS for key, v in getattr(self, name)._asdict().items()}
        found = {variable_of(k): _as_text(v) for k, v in values.items() if self.origin(k) == CONFIGURED_ORIGIN}
        own = [c.to_row() for c in self.credentials if self.origin(f"{CREDENTIALS}.{c.name}") == CONFIGURED_ORIGIN]
        if own:
            import json  # noqa: PLC0415  few scripts configure credentials

            found[variable_of(CREDENTIALS)] = json.dumps(own)
        if self.use:
            found[USE] = ",".join(self.use)
        return found


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return environment.SETTINGS_PREFIX + key.upper().replace(".", "_")


def find_project_file(start: Path | None = None) -> Path | None:
    """The nearest gpu-train.toml in `start`, by default the working directory, or a folder above it."""
    if start is None:
        try:
            start = Path.cwd()
        except FileNotFoundError:  # it was deleted under us, and takes no settings with it
            return None
    for folder in (start.absolute(), *start.absolute().parents):
        candidate = folder / PROJECT_FILE
        if candidate.is_file():
            return candidate
    return None


def configure(*, registry: Mapping[str, Any] | None = None, use: Iterable[str] = ()) -> None:
    """Set settings for this process and the jobs that it starts; a second call replaces the first.

    `registry` has sections as in gpu-train.toml: {"defaults": {...}, "sinks": {...}, "credentials": [...]};
    `use` names the credentials and sinks to use.

    Raises:
        UsageError: for an unknown name or a wrong type; nothing was changed then.
    """
    layer = _checked(dict(registry or {}), CONFIGURED_ORIGIN)
    _configured.replace(layer, tuple(use))


Layer = dict[str, tuple[Any, str]]


class _Configured:
    """What `configure` was last told, for this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layer: Layer = {}
        self.use: tuple[str, ...] = ()

    def layer(self) -> Layer:
        with self._lock:
            return dict(self._layer)

    def replace(self, layer: Layer, use: tuple[str, ...]) -> None:
        with self._lock:
            self._layer, self.use = layer, use


_configured = _Configured()


def _from_file(path: Path) -> Layer:
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: cannot be read: {e}") from e
    import tomllib  # noqa: PLC0415  most homes and projects have no settings of their own

    try:
        return _checked(tomllib.loads(text), str(path))
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path}: not valid TOML: {e}") from e


def _from_environment(env: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name, section in SECTIONS.items():
        for key in section._fields:
            variable = variable_of(f"{name}.{key}")
            if variable in env:
                layer[f"{name}.{key}"] = (_parsed(env[variable], field_types(section)[key], variable), variable)
    if text := env.get(variable := variable_of(CREDENTIALS)):
        import json  # noqa: PLC0415  rarely set

        try:
            layer.update(_credentials(json.loads(text), variable, variable))
        except ValueError as e:
            # Not `json`'s own words: they say where in a text that may hold anything.
            said = f"{e}" if isinstance(e, UsageError) else f"{variable}: JSON is expected, a list of tables"
            raise UsageError(said) from None
    return layer


def _credentials(tables: Any, where: str, source: str) -> Layer:
    try:
        return {f"{CREDENTIALS}.{one.name}": (one, source) for one in credentials_of(tables)}
    except ValueError as e:
        raise UsageError(f"{where}: {e}") from None


def _checked(raw: Mapping[str, Any], source: str) -> Layer:
    """Turn nested tables into "section.name" -> value, with every name and type checked."""
    layer: Layer = {}
    for name, table in raw.items():
        if name == CREDENTIALS:
            layer.update(_credentials(table, f"{source}:{name}", source))
            continue
        if name == PROJECTS:
            layer.update((f"{PROJECTS}.{k}", (v, source)) for k, v in _projects(table, f"{source}:{name}").items())
            continue
        if name not in SECTIONS:
            raise UsageError(f"{source}:{name}: no such section{_nearest(name, [*SECTIONS, PROJECTS, CREDENTIALS])}")
        for key, value in read_section(table, SECTIONS[name], f"{source}:{name}").items():
            layer[f"{name}.{key}"] = (value, source)
    return layer


def read_section(table: Any, section: Any, where: str) -> dict[str, Any]:
    """The settings in a table of that section, of their types.

    Raises:
        UsageError: naming `where` and the key, for an unknown name or a wrong type.
    """
    kinds = field_types(section)
    unknown = next((key for key in _table(table, where) if key not in kinds), None)
    if unknown is not None:
        raise UsageError(f"{where}.{unknown}: no such setting{_nearest(unknown, kinds)}")
    return {key: _fitted(value, kinds[key], f"{where}.{key}") for key, value in table.items()}


def _projects(table: Any, where: str) -> dict[str, Retention]:
    """What is set for each project."""
    found = {}
    for project, own in _table(table, where).items():
        unknown = next((key for key in _table(own, f"{where}.{project}") if key != "retention"), None)
        if unknown is not None:
            raise UsageError(f"{where}.{project}.{unknown}: no such table; known is retention")
        settings = read_section(own.get("retention", {}), Retention, f"{where}.{project}.retention")
        found[project] = Retention(**settings)
    return found


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: a table is expected, this is {_kind_of(value)}")
    return value


@cache
def field_types(section: Any) -> Mapping[str, Any]:
    """The settings of a section and their types."""
    return typing.get_type_hints(section)


def _fitted(value: Any, kind: Any, where: str) -> Any:
    """The value as its setting's type, or an error that says what was expected."""
    if kind in READERS:
        try:
            return READERS[kind](value)
        except ValueError as e:
            raise UsageError(f"{where}: {e}") from e
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise UsageError(f"{where}: {_name_of(kind)} is expected, this is {_kind_of(value)} ({value!r})")


def _parsed(text: str, kind: Any, variable: str) -> Any:
    """A setting from an environment variable's text."""
    if kind in READERS:
        return _fitted(text, kind, variable)
    if typing.get_origin(kind) is tuple:
        return tuple(part for part in text.split(",") if part)
    if kind is str:
        return text
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False,
                 "off": False}  # fmt: skip
        if text.lower() in words:
            return words[text.lower()]
    else:
        try:
            return kind(text)
        except ValueError:
            pass
    raise UsageError(f"{variable}={text}: {_name_of(kind)} is expected")


def _shown(value: Any) -> Any:
    """A setting's value in types that programs know; what may be secret is left out."""
    return tuple(getattr(one, "shown", None) or str(one) for one in value) if isinstance(value, tuple) else value


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name_of(kind: Any) -> str:
    if isinstance(kind, types.GenericAlias) or typing.get_origin(kind) is tuple:
        return "a list of strings"
    return {str: "a string", bool: "true or false", float: "a number", int: "a whole number"}[kind]


def _kind_of(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, Mapping) else f"a {type(value).__name__}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    meant = near(name, known, 1)
    return f"; did you mean {meant[0]!r}?" if meant else f"; known are {', '.join(known)}"
