"""Python's collector of reference cycles, in the processes that are ours alone.

A command lives for a moment. Most of what it makes in that time are modules, which stay until its end: by default the
collector looks through them again and again while they are loaded, and once more when the process ends, for a tenth of
all that a small command costs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 50_000
"""Objects that come to be, less those that go, between two looks at the young ones; Python's own number is 700."""


@contextmanager
def at_ease() -> Iterator[None]:
    """Around the main function of a process: look for cycles seldom, and not at all in what is left at its end.

    What must happen at the end (files flushed, locks given back) must not depend on that: here it is done explicitly.
    """
    gc.set_threshold(THRESHOLD)
    try:
        yield
    finally:
        gc.freeze()
