"""One writer's packs: frames go in, a new pack begins when one is full, all are published together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu_train_cas.codecs import Encoded
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.pack import PACK_BYTES, PackWriter, SealedPack, publish

TEMPORARY = ".tmp"

Admit = Callable[[int], None]
"""Is told how many bytes are about to be written, and may raise; the writer can then only be left."""


class Packer:
    """Fills packs under `tmp`, named by the writer's lease, until `publish` moves them into `packs`.

    Nothing is under `packs` before that, so whatever a killed writer leaves lies in `tmp` under the id of
    a dead lease. One thread at a time.
    """

    def __init__(self, tmp: Path, lease_id: str, admit: Admit | None = None) -> None:
        self._tmp = tmp
        self._admit = admit
        self._lease_id = lease_id
        self._current: PackWriter | None = None
        self._sealed: list[SealedPack] = []
        self._count = 0

    def add(
        self, kind: Kind, digest: Digest, length: int, encoded: Encoded, base: Digest | None = None,
        sibling: Digest | None = None,
    ) -> None:  # fmt: skip
        """Append a frame to the pack at hand.

        Raises:
            StorageFull: when the disk is full.
        """
        if self._admit is not None:
            self._admit(len(encoded.payload))
        if self._current is not None and self._current.size_bytes >= PACK_BYTES:
            self._sealed.append(self._current.seal())
            self._current = None
        if self._current is None:
            self._count += 1
            self._current = PackWriter(self._tmp / f"{self._lease_id}.{self._count}{TEMPORARY}")
        self._current.add(kind, digest, length, encoded, base, sibling)

    def sync(self) -> None:
        """Push the bulk to the disk; called before the write transaction that `publish` runs in."""
        if self._current is not None:
            self._current.sync()

    def publish(self, packs: Path) -> list[SealedPack]:
        """Seal what is open and move all packs to their places, durably. Call under the registry's write lock.

        Only there may gc take a pack without an entry for an orphan.

        Raises:
            StorageFull: when the disk is full.
        """
        if self._current is not None:
            self._sealed.append(self._current.seal())
            self._current = None
        done, self._sealed = self._sealed, []
        for sealed in done:
            publish(sealed, packs)
        return done

    def discard(self) -> None:
        """Drop everything that was not published; safe to call twice."""
        if self._current is not None:
            self._current.discard()
            self._current = None
        for sealed in self._sealed:
            sealed.path.unlink(missing_ok=True)
        self._sealed = []


def temporaries_of(tmp: Path, lease_id: str) -> list[Path]:
    """What a writer with that lease left in `tmp`."""
    return sorted(tmp.glob(f"{lease_id}.*{TEMPORARY}"))
