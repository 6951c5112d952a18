"""Objects in this process's memory: for tests, and what the other kinds are compared with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from gpu_train.errors import Taken
from gpu_train.sinks.objects.content import Content, parts
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import NotFound


class MemoryObjects:
    """See `ObjectStore`."""

    few_files = False

    def __init__(self, address: str = "memory://") -> None:
        self.address = address
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        for one in objects:
            if one.again and self.holds(one.key, one.content):
                continue
            data = b"".join(parts(one.content))
            on_bytes(len(data))
            with self._lock:
                if one.only_new and self.objects.get(one.key, data) != data:
                    raise Taken(f"{self.address}: {one.key} is there already with other bytes")
                self.objects[one.key] = data

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        data = self.objects.get(key)
        return None if data is None else len(data)

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`."""
        return self.objects.get(key) == b"".join(parts(content))

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        try:
            return self.objects[key][offset : offset + length]
        except KeyError:
            raise NotFound(f"{self.address}: there is no {key}") from None

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        with self._lock:
            found = [Found(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)]
        yield from found

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        with self._lock:
            for key in keys:
                self.objects.pop(key, None)

    def close(self) -> None:
        """See `ObjectStore`."""
