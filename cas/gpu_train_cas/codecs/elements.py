"""Codecs FLOAT and DELTA: a block's elements, on their own or as what differs from those of a base.

A sibling may help: with contexts, or by turning the base into a prediction.

The native kernel decides which by samples, encodes, decodes and compares, all in one call without the GIL
(`kernel.pack`). It knows that the exponents of a tensor take few values and takes the mantissas for noise. Where
a sample of them is no noise (numbers that were cast up, counters), planes.py serves better; where bytes repeat,
zstd may. An entrant that was asked says so.
"""

from __future__ import annotations

from gpu_train_cas.codecs import kernel, planes
from gpu_train_cas.codecs.codec import Codec, Grid, Reference
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT, MODE_KERNEL, PREDICTED_ELEMENT
from gpu_train_cas.errors import Damaged


class Elements:
    """The entrant for one block of elements. How deep deltas may lie is the caller's affair (cas/spec/deltas.md).

    Attributes:
        codec: FLOAT or DELTA, once it has been asked.
        constant: the block is one element again and again; there is no payload then.
        regular: planes may be shorter.
        repeats: zstd may be.
    """

    proves = True

    def __init__(self, base: Reference | None, sibling: Reference | None, grid: Grid | None) -> None:
        self._base, self._sibling, self._grid = base, sibling, grid
        self.codec = Codec.FLOAT
        self.constant = False
        self.regular = self.repeats = True

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """The payload that samples promise to be the shortest.

        Raises:
            Damaged: when it did not decode to the block.
        """
        element = ELEMENTS.get(dtype)
        if element is None or not kernel.writes():
            return None
        base, sibling = (
            other if other is not None and len(other.data) == len(block) else None
            for other in (self._base, self._sibling if element & FLOAT else None)
        )
        if sibling is not None and sibling.role in kernel.PREDICTS and (base is None or element != PREDICTED_ELEMENT):
            sibling = None
        packed = kernel.pack(
            block, element, limit, base=None if base is None else base.data, sibling=sibling, grid=self._grid
        )
        self.codec = Codec.DELTA if packed.delta else Codec.FLOAT
        if packed.wrong:
            raise Damaged("a kernel payload decodes to something else than the block")
        self.constant = packed.constant
        self.regular = packed.regular and not packed.delta
        self.repeats = (packed.repeats or packed.payload is None) and not (packed.constant and planes.known(dtype))
        return packed.payload

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        sibling = self._sibling.data if self._sibling is not None else None
        if self.codec is Codec.DELTA and self._base is not None:
            return kernel.decode(payload, length, base=self._base.data, sibling=sibling)
        return decode(payload, length, sibling)


def decode(payload: bytes | memoryview, length: int, sibling: bytes | memoryview | None) -> bytes | memoryview:
    """The block of a FLOAT payload of either mode.

    Raises:
        Damaged: as `Entrant.decode`, and for other modes.
    """
    if len(payload) and payload[0] == MODE_KERNEL:
        return kernel.decode(payload, length, sibling=sibling)
    if len(payload) and payload[0] != planes.MODE_PLANES:
        raise Damaged(f"float payload of mode {payload[0]}: damaged or of a newer gpu-train")
    return planes.decode(payload, length)
