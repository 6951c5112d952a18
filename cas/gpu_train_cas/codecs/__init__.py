"""Codecs: how a block is stored as fewer bytes, and got back bit for bit (cas/spec/codecs.md).

    codec.py   the words: Codec (the number in a frame), Encoded, Entrant (what takes part in a race)
    raw.py     the bytes as they are
    zstd.py    one Zstandard frame; also squeezes single planes for float.py
    float.py   elements split into byte planes, each stored as suits it
    race.py    encode: entrants propose, the smallest payload that decodes back wins; decode: by number

`encode` and `decode` may be called from any thread; their heavy parts release the GIL.
"""

from gpu_train_cas.codecs.codec import Codec, Encoded, Entrant
from gpu_train_cas.codecs.race import decode, encode, encode_object

__all__ = ["Codec", "Encoded", "Entrant", "decode", "encode", "encode_object"]
