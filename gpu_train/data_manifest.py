"""A data version's list of files: what its name is made from, and its form as JSON.

The name is the first 16 hex digits of the SHA-256 over the canonical manifest, which is

    "gpu-train data 1\\n", then for each file in the byte order of the paths:
    <SHA-256 in hex> <space> <size in bytes, decimal> <space> <path> <NUL>

so that only paths, sizes and bytes count: not times, modes, owners, or where the data lies. The JSON file is
described in docs/guides/code-and-data.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gpu_train_cas.errors import Damaged, TooNew

SCHEMA_VERSION = 1
VERSION_DIGITS = 16
_HEADER = b"gpu-train data 1\n"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file: its path from the data's root (bytes, `/`), size, and SHA-256 (32 bytes)."""

    path: bytes
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be recorded, and why."""

    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DataManifest:
    """All files of a data version, sorted by path."""

    files: tuple[DataFile, ...]

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> Self:
        """Sort the files into a manifest."""
        return cls(tuple(sorted(files, key=lambda f: f.path)))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def version(self) -> str:
        """The name of this content."""
        digest = hashlib.sha256(_HEADER)
        for file in self.files:
            digest.update(b"%s %d %s\0" % (file.sha256.hex().encode(), file.size_bytes, file.path))
        return digest.hexdigest()[:VERSION_DIGITS]

    def to_json(self, facts: Mapping[str, Any], skipped: Sequence[Skipped] = ()) -> bytes:
        """The manifest as JSON, one file a line; `facts` come first in it."""
        head = {
            "schema_version": SCHEMA_VERSION, **facts, "num_files": len(self.files), "size_bytes": self.size_bytes,
            "skipped": [path_to_json(s.path) | {"reason": s.reason} for s in skipped],
        }  # fmt: skip
        lines = [
            json.dumps(path_to_json(f.path) | {"size": f.size_bytes, "sha256": f.sha256.hex()}) for f in self.files
        ]
        body = ",\n".join(lines)
        return f'{json.dumps(head, indent=1)[:-2]},\n "files": [\n{body}\n]}}\n'.encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the files back.

        Raises:
            Damaged: for something else than such a manifest.
            TooNew: for one of a later schema.
        """
        try:
            row = json.loads(data)
            if row["schema_version"] > SCHEMA_VERSION:
                raise TooNew(
                    f"a data manifest of schema {row['schema_version']}: this gpu-train reads {SCHEMA_VERSION}; "
                    "install a newer one"
                )
            return cls.of(
                [DataFile(path_from_json(f), int(f["size"]), bytes.fromhex(f["sha256"])) for f in row["files"]]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise Damaged(f"a data manifest cannot be read: {e!r}") from e


def path_to_json(path: bytes) -> dict[str, str]:
    """A path for JSON: as text, and when it is no UTF-8 also as base64, which alone is then exact."""
    try:
        return {"path": path.decode()}
    except UnicodeDecodeError:
        return {"path": path.decode(errors="replace"), "path_b64": base64.b64encode(path).decode()}


def path_from_json(row: Mapping[str, Any]) -> bytes:
    """The bytes of a path that `path_to_json` wrote."""
    exact = row.get("path_b64")
    return str(row["path"]).encode() if exact is None else base64.b64decode(exact, validate=True)
