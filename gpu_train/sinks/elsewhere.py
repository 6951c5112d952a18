"""All sinks that hold something of a home, as one source of blocks behind its packs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpu_train.sinks.holdings import Holdings
from gpu_train.sinks.opening import open_sink
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.setting import SinkSetting
from gpu_train.workspace import Workspace
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Damaged, GpuTrainError, Unreachable
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.framecache import FolderFrames
from gpu_train_cas.remote import RemoteBlocks

CACHE_BYTES = 2 << 30
"""What is kept of what was read from sinks, in `cache/blocks` of the home."""


class Elsewhere:
    """See `BlockSource`, `Foresighted` and `Forgetful`. A sink is opened when it is first needed."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        registry = workspace.store.registry
        settings = Queue(registry).settings()
        settings |= {setting.address: setting for setting in workspace.config.sinks.checkpoints}
        self._sinks = [(setting, Holdings(registry, setting.address)) for setting in settings.values()]
        self._opened: dict[str, RemoteBlocks] = {}
        self._frames = FolderFrames(workspace.home.cache / "blocks", CACHE_BYTES)
        self._lock = threading.Lock()

    def holds(self, digest: Digest) -> bool:
        """Whether a sink is known to have it."""
        return bool(self._holding(digest))

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """See `BlockSource`: from the first sink that gives it."""
        failed: GpuTrainError | None = None
        for setting in self._holding(digest):
            try:
                found = self._blocks(setting).fetch(digest)
            except (Damaged, Unreachable) as e:
                failed = e
            except GpuTrainError as e:  # credentials, a package that is missing
                failed = Unreachable(str(e))
            else:
                if found is not None:
                    return found
        if failed is not None:
            raise failed
        return None

    def expect(self, digests: Sequence[Digest]) -> Sequence[Digest]:
        """See `Foresighted`: each is expected of the first sink that has it."""
        by_sink: dict[SinkSetting, list[Digest]] = {}
        left: list[Digest] = []
        for digest in digests:
            setting = next(iter(self._holding(digest)), None)
            if setting is None:
                left.append(digest)
            else:
                by_sink.setdefault(setting, []).append(digest)
        for setting, wanted in by_sink.items():
            try:
                self._blocks(setting).expect(wanted)
            except GpuTrainError:  # whoever reads them is told
                continue
        return left

    def forget(self, digest: Digest) -> None:
        """See `Forgetful`."""
        self._frames.drop(digest)

    def _holding(self, digest: Digest) -> list[SinkSetting]:
        with self._workspace.store.registry.read() as txn:
            return [setting for setting, holdings in self._sinks if holdings.find(txn, digest) is not None]

    def _blocks(self, setting: SinkSetting) -> RemoteBlocks:
        with self._lock:
            if setting.address not in self._opened:
                self._opened[setting.address] = open_sink(self._workspace, setting, self._frames).blocks
            return self._opened[setting.address]
