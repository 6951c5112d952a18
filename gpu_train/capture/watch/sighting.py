"""What the sentry tells the agent: one line of JSON for each thing that it saw or did, in the order in which it did."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Self

FILE = "file"
"""A name is a file now. `hold` is what keeps its bytes; without it they could not be held, and `why` says so."""

FOLDER = "folder"
"""A name is a folder now, `child` its number. `why` says what may have been missed in it, if anything."""

OTHER = "other"
"""A name is something else now: a symbolic link, a pipe."""

CLOSED = "closed"
"""A file was closed by a writer; `version` is what it was then, `coming` whether a copy of that is being made."""

KEPT = "kept"
"""`hold` is an exact copy of `version`, which writing over the file does not reach; `now` is how it is known now."""

OVERWRITTEN = "overwritten"
"""The copy of `version` that was coming could not be made: the file was being written to again, or `why`."""

DELETED = "deleted"
"""A name is gone."""

MOVED = "moved"
"""A name has gone elsewhere; when that is within reach, a FILE or FOLDER with the same `cookie` follows."""

BEGIN = "begin"
"""Everything there is follows, up to END; what does not come is not there. Numbers of folders begin anew."""

END = "end"
"""All that was there has been told."""

NOTICE = "notice"
"""`why` is something that a person should know."""

BLIND = "blind"
"""From now on some folders are not watched; `why` says which way out there is. They must be looked at by turns."""

DIED = "died"
"""The sentry is dead: what it kept open and was copying will not come. Its agent says so, after all that it told."""

PLACE = "place"
"""`hold` is a folder in which bytes of another file system are kept."""

MARK = "mark"
"""The agent's command `mark` was read, and all that had happened before has been told; `why` repeats its word."""

POKE = "poke"
"""The job has something to tell in its control folder."""

Version = tuple[int, int, int, int]
"""A file's content at a moment: device, inode, size in bytes, modification time in ns."""


def version_of(found: os.stat_result) -> Version:
    """From a stat of the file itself."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Sighting(NamedTuple):
    """One line.

    Attributes:
        kind: one of the words above.
        at: when, in monotonic seconds, which all processes of a machine share.
        folder, name: the name's folder by number, and the name in it. Folder 0 is the one that holds the root.
        child: the number of the folder that the name is.
        cookie: what a MOVED and the sighting of the new name have in common, else 0.
        inode: device and inode of what the name is.
        hold: a path by which the bytes can be had, whatever becomes of the name.
        version: a file's content, for CLOSED, KEPT and OVERWRITTEN. now: the same, with the time that it has now.
        coming: for CLOSED, whether KEPT or OVERWRITTEN follows.
        gone: for FILE and FOLDER, whether it had left that name before anybody could look at it.
        why: in words.
    """

    kind: str
    at: float = 0.0
    folder: int = 0
    name: str = ""
    child: int = 0
    cookie: int = 0
    inode: tuple[int, int] | None = None
    hold: str = ""
    version: Version | None = None
    now: Version | None = None
    coming: bool = False
    gone: bool = False
    why: str = ""

    def encode(self) -> bytes:
        """The line, with its newline. Names that are no UTF-8 are in it as escapes."""
        values = {f: v for f, v in zip(self._fields, self, strict=True) if v != self._field_defaults.get(f)}
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Read a line back."""
        values: dict[str, Any] = json.loads(line)
        for name in ("inode", "version", "now"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)
