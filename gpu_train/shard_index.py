"""The index beside a model in several files (`model.safetensors.index.json`): which file has which tensor.

It is taken apart pair by pair, so that a hostile one costs no more than its own bytes and the names that are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import Source
from gpu_train_cas.formats.layout import plain

ENDING = ".index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_TENSORS = 1 << 18

_STRING = rb'"((?:[^"\\]++|\\.)*+)"'
_SPACE = rb"[ \t\r\n]*+"
_PAIR = re.compile(_SPACE + _STRING + _SPACE + rb":" + _SPACE + _STRING + _SPACE + rb"([,}])", re.DOTALL)
_MAP = re.compile(rb'"weight_map"' + _SPACE + rb":" + _SPACE + rb"\{")
_EMPTY = re.compile(_SPACE + rb"\}")
_TOTAL = re.compile(rb'"total_size"' + _SPACE + rb":" + _SPACE + rb"([0-9]{1,18})(?:\.0)?" + _SPACE + rb"[,}]")


class ShardIndex(NamedTuple):
    """What an index says.

    Attributes:
        files: per tensor the file that has it, in the folder of the index.
        total_bytes: of all tensors; None when it does not say.
    """

    files: Mapping[str, str]
    total_bytes: int | None = None


def read_index(source: Source) -> ShardIndex:
    """What the index says.

    Raises:
        Damaged: when it is no index, or beyond the limits.
    """
    if source.size_bytes > MAX_INDEX_BYTES:
        raise Damaged(f"an index of {source.size_bytes} bytes is longer than {MAX_INDEX_BYTES}")
    data = source.pread(source.size_bytes, 0)
    start = _MAP.search(data)
    if start is None:
        raise Damaged("an index without a weight_map")
    total = _TOTAL.search(data)
    return ShardIndex(_files(data, start.end()), int(total[1]) if total else None)


def _files(data: bytes, at: int) -> dict[str, str]:
    files: dict[str, str] = {}
    more = _EMPTY.match(data, at) is None
    while more:
        pair = _PAIR.match(data, at)
        if pair is None:
            raise Damaged(f"the weight_map is broken at byte {at} of the index")
        if len(files) >= MAX_TENSORS:
            raise Damaged(f"an index of more than {MAX_TENSORS} tensors is beyond the limits")
        files[_text(pair[1])] = _text(pair[2])
        at, more = pair.end(), pair[3] == b","
    return files


def _text(word: bytes) -> str:
    try:
        text: str = json.loads(b'"' + word + b'"')
    except ValueError as e:
        raise Damaged(f"the index holds no JSON at {word[:80]!r}: {e}") from e
    return plain(text)
