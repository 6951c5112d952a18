"""The workspace: a home opened, with its settings, store and tables. What every program starts from."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpu_train.config import Config
from gpu_train.home import Home
from gpu_train.tables import Checkpoints, Jobs
from gpu_train_cas.store import Store

if TYPE_CHECKING:
    from gpu_train.code import CodeVersions
    from gpu_train.data_version import DataVersions
    from gpu_train.model import Models
    from gpu_train.sinks.elsewhere import Elsewhere
    from gpu_train.tables import Events, Metrics
    from gpu_train_cas.digest import Digest

TABLES = (
    "jobs", "checkpoints", "checkpoint_places", "removed_checkpoints", "removed_places", "metrics", "events", "code",
    "data", "sinks", "sink_packs", "sink_blocks", "sink_records", "pushes", "push_sinks",
)  # fmt: skip
"""The library's tables. They are opened together: one by one, each would cost a new home a synced transaction."""


class Workspace:
    """One open home. Threads may share it; a forked child must open its own. Close it, or use `with`."""

    def __init__(self, home: Home, config: Config, store: Store) -> None:
        self.home = home
        self.config = config
        self.store = store
        store.registry.open_tables(TABLES)
        store.elsewhere = lambda: self._known_sinks
        store.is_elsewhere = self._is_in_a_sink
        self.jobs = Jobs(store.registry, store.transaction)
        self.checkpoints = Checkpoints(store.registry, store.transaction, self.jobs, self._best_metric)

    @classmethod
    def open(
        cls, home: Home | Path | str | None = None, *, create: bool = True, read_only: bool = False,
        cwd: Path | None = None,
    ) -> Self:  # fmt: skip
        """Open the home (by default GPU_TRAIN_HOME, else ~/.gpu-train), making it unless told not to.

        `cwd` is where the search for gpu-train.toml begins, by default the working directory.

        Raises:
            NotFound: when it is not there and `create` is False or `read_only` is True.
            ReadOnly, UnsupportedHome, TooNew: when it cannot be used, with the way out.
            UsageError: for a setting that cannot be read, or a home that is no folder.
        """
        home = Home.locate(home.root if isinstance(home, Home) else home)
        config = Config.load(home, cwd=cwd)
        return cls(home, config, Store.open(home.root, create=create, read_only=read_only))

    # Not every program needs these, and none is loaded without need.

    @cached_property
    def metrics(self) -> Metrics:
        """The jobs' metrics."""
        from gpu_train.tables import Metrics  # noqa: PLC0415

        return Metrics(self.store.registry)

    @cached_property
    def events(self) -> Events:
        """The jobs' events."""
        from gpu_train.tables import Events  # noqa: PLC0415

        return Events(self.store.registry)

    @cached_property
    def code(self) -> CodeVersions:
        """The code versions."""
        from gpu_train.code import CodeVersions  # noqa: PLC0415

        return CodeVersions(self.home, self.config, self.store)

    @cached_property
    def data(self) -> DataVersions:
        """The data versions."""
        from gpu_train.data_version import DataVersions  # noqa: PLC0415

        return DataVersions(self.home, self.store, self.jobs)

    @cached_property
    def models(self) -> Models:
        """The registered models."""
        from gpu_train.model import Models  # noqa: PLC0415

        return Models(self.home, self.store)

    @cached_property
    def _known_sinks(self) -> tuple[Elsewhere, ...]:
        """The sinks that hold something of this home, as sources of blocks."""
        with self.store.registry.read() as txn:
            if self.store.registry.table("sink_packs").is_empty(txn):
                return ()
        from gpu_train.sinks.elsewhere import Elsewhere  # noqa: PLC0415  few homes have sinks

        return (Elsewhere(self),)

    def _is_in_a_sink(self, digest: Digest) -> bool:
        return any(source.holds(digest) for source in self._known_sinks)

    def _best_metric(self) -> tuple[str, str]:
        return self.config.defaults.best_metric, self.config.defaults.best_mode

    @cached_property
    def read_only(self) -> bool:
        """Whether nothing can be written."""
        return self.store.registry.read_only

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
