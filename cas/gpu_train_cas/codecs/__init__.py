"""Codecs: how a block is stored as fewer bytes, and got back bit for bit (cas/spec/codecs.md).

    codec.py   the words: Codec (the number in a frame), Encoded, Entrant (what takes part in a race)
    raw.py     the bytes as they are
    zstd.py    one Zstandard frame; also squeezes single planes for planes.py
    elements.py numbers by the kernel, on their own or against a base block
    planes.py  numbers as byte planes, where their mantissas are no noise
    kernel.py  the float kernel: _kernel (cas/native, in C) or twin.py (numpy), which write the same bytes
    payload.py the header of the kernel's payloads; twin_model.py: their tables
    race.py    encode: entrants propose, the smallest payload that decodes back wins; decode: by number

numpy is imported where no native kernel was built: twin.py and twin_planes.py do its work then.

`encode` and `decode` may be called from any thread; their heavy parts release the GIL.
"""

from gpu_train_cas.codecs.codec import Codec, Encoded, Entrant, Grid, Reference, Role
from gpu_train_cas.codecs.payload import sibling_of
from gpu_train_cas.codecs.race import decode, encode, encode_object

__all__ = [
    "Codec", "Encoded", "Entrant", "Grid", "Reference", "Role", "decode", "encode", "encode_object", "sibling_of",
]  # fmt: skip
