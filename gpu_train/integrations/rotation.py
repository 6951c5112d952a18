"""The order of a trainer's saves and removals: nothing is removed before what replaces it is there.

Light on purpose: no framework.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable


class Rotation:
    """Saves that may still be under way, and removals that wait for them. Threads may call.

    A removal that is asked for after n saves happens once the n-th or a later one has succeeded. So a save that
    fails costs no older checkpoint either; what it was to replace goes with the next one that succeeds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._done = 0
        self._under_way: dict[str, deque[int]] = defaultdict(deque)
        self._held: list[tuple[int, str, Callable[[], None]]] = []

    def __reduce__(self) -> tuple[type[Rotation], tuple[()]]:
        """A copy in another process begins anew."""
        return Rotation, ()

    def begin(self, path: str) -> None:
        """A save is asked for. A removal of the same path that still waits is void: the save writes over it."""
        with self._lock:
            self._asked += 1
            self._under_way[path].append(self._asked)
            self._held = [held for held in self._held if held[1] != path]

    def end(self, path: str, *, saved: bool) -> None:
        """The oldest save of that path has ended; removals that it was waited for with happen now."""
        with self._lock:
            numbers = self._under_way[path]
            number = numbers.popleft() if numbers else self._asked
            if not numbers:
                del self._under_way[path]
            if not saved:
                return
            self._done = max(self._done, number)
            ready = [remove for asked, _, remove in self._held if asked <= self._done]
            self._held = [held for held in self._held if held[0] > self._done]
        for remove in ready:
            remove()

    def remove(self, path: str, remove: Callable[[], None]) -> None:
        """Remove now, or when the last save asked for so far, or a later one, has succeeded."""
        with self._lock:
            if self._asked > self._done:
                self._held.append((self._asked, path, remove))
                return
        remove()
