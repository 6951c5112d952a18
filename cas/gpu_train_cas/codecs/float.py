"""Codec FLOAT: elements on their own, as symbols of the kernel (mode 1) or as byte planes (mode 0).

The kernel knows that the exponents of a tensor take few values and takes the mantissas for noise. Where a sample
of them is no noise (numbers that were cast up, counters, constants), planes serve better.
"""

from __future__ import annotations

from gpu_train_cas.codecs import kernel, planes
from gpu_train_cas.codecs.codec import Codec, Reference
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT, MODE_KERNEL, width_of
from gpu_train_cas.codecs.sample import estimate, mantissas_are_noise
from gpu_train_cas.errors import Damaged

SIBLING_PAYS = 0.99
"""A sibling must save 1 %: a block that needs another to be read is worth less."""


class Float:
    """The entrant for elements on their own, or with a sibling's contexts."""

    codec = Codec.FLOAT

    def __init__(self, sibling: Reference | None = None) -> None:
        self._sibling = sibling

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """The shorter of what the kernel and planes make of it, or the one that a sample says is shorter."""
        element = ELEMENTS.get(dtype)
        if element is None:
            return None
        noise = kernel.writes() and mantissas_are_noise(block, element)
        shortest: bytes | memoryview | None = None
        if not noise:
            shortest = planes.encode(block, dtype, limit)
        if kernel.writes() and (element & FLOAT or width_of(element) == 1):
            made = self._with_kernel(block, element, len(shortest) if shortest is not None else limit)
            shortest = made if made is not None else shortest
        return shortest

    def _with_kernel(self, block: bytes | memoryview, element: int, limit: int) -> bytes | memoryview | None:
        sibling = self._sibling
        if sibling is None or len(sibling.data) != len(block):
            return kernel.encode(block, element, limit, tokens=False)
        alone = estimate(block, element, tokens=False)
        if estimate(block, element, tokens=False, sibling=sibling.data) > SIBLING_PAYS * alone:
            return kernel.encode(block, element, limit, tokens=False)
        return kernel.encode(block, element, limit, tokens=False, sibling=sibling.data, sibling_digest=sibling.digest)

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        return decode(payload, length, self._sibling.data if self._sibling is not None else None)


def decode(payload: bytes | memoryview, length: int, sibling: bytes | memoryview | None) -> bytes | memoryview:
    """The block of a payload of either mode.

    Raises:
        Damaged: as `Entrant.decode`, and for other modes.
    """
    if len(payload) and payload[0] == MODE_KERNEL:
        return kernel.decode(payload, length, sibling=sibling)
    if len(payload) and payload[0] != planes.MODE_PLANES:
        raise Damaged(f"float payload of mode {payload[0]}: damaged or of a newer gpu-train")
    return planes.decode(payload, length)
