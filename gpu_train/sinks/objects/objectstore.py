"""What every kind of sink can do: keep objects, whole byte strings under keys, and give them back.

The layouts, the queue and the readers know only this; each module beside it puts it on one kind of backend. What is
the same for all is around it, not in it: trying again (`patient`), a limit to the bandwidth (`paced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from gpu_train.sinks.objects.content import Content

OnBytes = Callable[[int], None]
"""Told of bytes as they are sent, from any thread; a negative number when some are sent again."""

MAX_KEY_BYTES = 1024
"""Longer keys are refused by S3 and GCS."""


class Put(NamedTuple):
    """One object to be written.

    Attributes:
        key: its name: UTF-8 text, parts joined with `/`; no part is empty, `.` or `..`.
        content: its bytes.
        only_new: whether an object that is there already stays as it is, whatever it holds.
        mtime_ns: when the file that it came from was modified, where the backend can keep that.
        again: whether it may be there already, from an attempt that was broken off: then that is asked first.
    """

    key: str
    content: Content
    only_new: bool = False
    mtime_ns: int | None = None
    again: bool = False


class Found(NamedTuple):
    """An object that is there."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Keeps objects. Threads may share it; what it raises names its address and the key.

    Every method raises:
        Unavailable: when it may work in a while: no answer in time, errors of the server, too many requests.
        Refused: when a person has to do something first: credentials, rights, a bucket that does not exist.
    """

    address: str
    """What people know it by; nothing secret is in it."""

    @property
    def few_files(self) -> bool:
        """Whether it is made for few, large objects, such as a git repository: packs are then made larger."""

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """Write objects, several at a time, and read back from the backend what it now holds of each.

        When it returns, all are there, durable and visible to every reader, with size and checksum compared with
        what was sent. When it raises, any of them may be there, each whole or not at all. An upload that was broken
        off goes on where it stopped, where the backend can do that.

        Raises:
            Taken: when one that is `only_new` is there already with other bytes.
            Corrupted: when the backend holds something else than was sent.
            GpuTrainError: what reading a content raises.
        """

    def size(self, key: str) -> int | None:
        """The size of an object in bytes, None when there is none."""

    def holds(self, key: str, content: Content) -> bool:
        """Whether an object is there with exactly these bytes, by size and checksum; if possible without fetching."""

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """Bytes of an object; fewer only at its end.

        Raises:
            NotFound: when there is no such object.
        """

    def list(self, prefix: str = "") -> Iterator[Found]:
        """All objects whose keys begin so, in any order."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are passed over."""

    def close(self) -> None:
        """Give connections back; safe to call twice."""
