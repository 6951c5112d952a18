"""An answer that is no success, and that the caller knows how to deal with."""

from __future__ import annotations


class Declined(Exception):
    """Raised between the modules of one kind of object store only.

    Attributes:
        code: what the server called it, such as "NoSuchKey"; else the number of its status.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
