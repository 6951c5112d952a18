"""From a sink's setting to the sink: the object store of its type, with its credentials, tried again as needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from gpu_train.credentials.chain import Chain, Source
from gpu_train.credentials.credential import Wanted
from gpu_train.credentials.local import LocalCredentials
from gpu_train.sinks.objects.folder import FolderObjects
from gpu_train.sinks.objects.objectstore import ObjectStore
from gpu_train.sinks.objects.patient import PatientObjects
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.setting import GCS, HF, LOCAL, S3, SinkSetting
from gpu_train.sinks.sink import Sink
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound, UsageError
from gpu_train_cas.framecache import FrameCache

_STORES = {
    S3: ("gpu_train.sinks.objects.s3", "S3Objects"),
    GCS: ("gpu_train.sinks.objects.gcs", "GcsObjects"),
    HF: ("gpu_train.sinks.objects.hf", "HfObjects"),
}
"""Each of these modules is slow to load, and may need what is not installed."""


def open_sink(workspace: Workspace, setting: SinkSetting, frames: FrameCache | None = None) -> Sink:
    """A sink, ready to be used; nothing has been asked of it yet. `frames` keeps what is read of blocks.

    Raises:
        Refused: when what its type needs is not installed.
        UsageError: for credentials' settings that make no sense.
    """
    objects = objects_of(workspace, setting)
    return Sink(workspace, setting, PatientObjects(objects), objects, frames)


def objects_of(workspace: Workspace, setting: SinkSetting) -> ObjectStore:
    """The object store behind a sink; raises as `open_sink`."""
    if setting.type == LOCAL:
        return FolderObjects(Path(setting.dest))
    config = workspace.config
    chain = Chain(LocalCredentials(workspace.home), config.credentials, config.use)
    reference = setting.secret_ref or setting.token_ref or None
    source: Source = chain.source(Wanted(setting.address, setting.type, setting.name, reference))
    kind: Callable[..., ObjectStore] = getattr(import_module(_STORES[setting.type][0]), _STORES[setting.type][1])
    return kind(credentials=source, **_arguments(setting))


def _arguments(setting: SinkSetting) -> dict[str, object]:
    """What an object store is made with, beside its credentials; nothing for what is not set."""
    names = ("repo_id", "repo_type", "revision", "private") if setting.type == HF else ("region",)
    given = {name: getattr(setting, name) for name in ("bucket", "prefix", "endpoint", *names)}
    return {name: value for name, value in given.items() if value not in ("", None)}


def find_setting(workspace: Workspace, text: str) -> SinkSetting:
    """The sink that a person means: by its name, its address, the end of one, or an address that is not set anywhere.

    Raises:
        NotFound: when there is none of that name.
        UsageError: for an address that makes no sense.
    """
    sinks = workspace.config.sinks
    known = {one.address: one for one in (*Queue(workspace.store.registry).settings().values(), *sinks.logs)}
    known |= {one.address: one for one in sinks.checkpoints}
    for setting in known.values():
        if text in (setting.name, setting.address, str(setting)):
            return setting
    if "://" in text or "/" in text:
        try:
            setting = SinkSetting.of(text)
        except ValueError as e:
            raise UsageError(f"{text}: {e}") from None
        return known.get(setting.address, setting)
    names = ", ".join(one.called for one in known.values())
    raise NotFound(f"no sink is called {text!r}; " + (f"there are {names}" if names else "none is set: see [sinks]"))
