"""How long a server asks to be left alone."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime


def seconds_of(retry_after: str) -> float | None:
    """The seconds that a Retry-After header asks for: a number, or a date; None for neither."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
