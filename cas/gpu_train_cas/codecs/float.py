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
HOPELESS = 1.1
"""A sample that promises so many times the best length so far ends the matter."""


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
        for_kernel = element & FLOAT or width_of(element) == 1
        sibling = self._sibling if for_kernel and kernel.writes() else None
        if sibling is not None and len(sibling.data) != len(block):
            sibling = None
        if sibling is not None or limit < len(block):  # something to compare with
            expected = estimate(block, element, tokens=False)
            if sibling is not None:
                beside = estimate(block, element, tokens=False, sibling=sibling.data)
                sibling, expected = (sibling, beside) if beside <= SIBLING_PAYS * expected else (None, expected)
            if expected > HOPELESS * limit:
                return None
        if not for_kernel or not (kernel.outruns_planes() or sibling is not None):
            return planes.encode(block, dtype, limit)
        shortest = None
        if sibling is None and not mantissas_are_noise(block, element):
            shortest = planes.encode(block, dtype, limit)
        made = kernel.encode(
            block, element, len(shortest) if shortest is not None else limit, tokens=False,
            sibling=sibling.data if sibling is not None else None,
            sibling_digest=sibling.digest if sibling is not None else None,
        )  # fmt: skip
        return made if made is not None else shortest

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
