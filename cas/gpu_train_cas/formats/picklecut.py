"""A pickled dict without some of its keys, made by leaving out the opcodes that put them in; nothing is executed.

A pickle is a program for a stack machine. Which opcodes make up a key and its value follows from what each opcode takes
from the stack and puts there (CPython's pickletools.py, as in its `dis`). What they memoize and later opcodes fetch is
put in elsewhere: a class or a string as itself, within one more entry of the dict; anything else is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gpu_train_cas.formats.layout import FormatError

LEFT_OVER = "left by gpu-train"
"""The key of the entry that holds what the rest of the pickle fetches of what was left out."""

_PUTS = {"BINPUT", "LONG_BINPUT", "PUT"}
_GETS = {"BINGET", "LONG_BINGET", "GET"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING"}
_SIMPLE = _TEXTS | {"GLOBAL", "EMPTY_TUPLE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE"}
_UNNUMBERED = {"MEMOIZE", "FRAME", "PROTO"}
_MARK = -1


class _Op(NamedTuple):
    """An opcode: what it is called, its argument, and its bytes [start, end)."""

    name: str
    arg: Any
    start: int
    end: int


class _Pair(NamedTuple):
    """A key of the outermost dict, and the bytes that put it and its value in; `alone` with the opcode that does so."""

    key: str | None
    start: int
    end: int
    alone: bool


def without_keys(data: bytes, drop: Callable[[str], bool]) -> tuple[bytes, list[str]]:
    """The pickle without the entries of its outermost dict whose key `drop` accepts, and these keys.

    Raises:
        FormatError: when it is no pickle of a dict in protocol 2, or the rest needs more than classes and strings of
            what would be left out.
    """
    ops = _ops(data)
    pairs = [pair for pair in _pairs(ops) if pair.key is not None and drop(pair.key)]
    parts, at = [], 0
    for pair in pairs:
        parts += [data[at : pair.start], _hoisted(data, ops, pair)]
        at = pair.end
    return b"".join([*parts, data[at:]]), [pair.key for pair in pairs if pair.key is not None]


def _ops(data: bytes) -> list[_Op]:
    import pickletools  # noqa: PLC0415  only who takes state out of a file needs it

    found: list[_Op] = []
    try:
        steps = [(op.name, arg, start) for op, arg, start in pickletools.genops(data)]
    except (ValueError, UnicodeDecodeError, IndexError) as e:
        raise FormatError(f"the pickle is broken: {e}") from e
    for (name, arg, start), following in zip(steps, [*steps[1:], ("", None, len(data))], strict=True):
        if name in _UNNUMBERED and not (name == "PROTO" and arg == 2):
            raise FormatError("the pickle is not of protocol 2, in which torch.save writes by itself")
        found.append(_Op(name, arg, start or 0, following[2] or 0))
    if not found or found[-1].name != "STOP":
        raise FormatError("the pickle has no end")
    return found


def _pairs(ops: Sequence[_Op]) -> list[_Pair]:
    """The entries of the outermost dict, each once; the stack holds where each value's opcodes begin."""
    from pickletools import markobject, opcodes  # noqa: PLC0415

    effects = {op.name: (op.stack_before, op.stack_after) for op in opcodes}
    texts = _texts(ops)
    stack: list[int] = []
    found: list[_Pair] = []
    for op in ops:
        before, after = effects[op.name]
        taken = len(before)
        if markobject in before:
            taken = before.index(markobject) + len(stack) - _last_mark(stack)
        if taken > len(stack):
            raise FormatError(f"the pickle is broken at its byte {op.start}: the stack is empty")
        operands = stack[len(stack) - taken :]
        if op.name in ("SETITEM", "SETITEMS") and len(stack) == taken:
            found += _entries(op, [at for at in operands[1:] if at != _MARK], texts)
        del stack[len(stack) - taken :]
        start = min([at for at in operands if at != _MARK], default=op.start)
        stack += [_MARK if item is markobject else start for item in after]
    if len({pair.key for pair in found}) != len(found):
        raise FormatError("the state has an entry twice, or under a key that is no string")
    return found


def _last_mark(stack: Sequence[int]) -> int:
    """Where the topmost mark lies."""
    for at in range(len(stack) - 1, -1, -1):
        if stack[at] == _MARK:
            return at
    raise FormatError("the pickle is broken: a mark is missing")


def _entries(op: _Op, starts: Sequence[int], texts: dict[int, str]) -> Iterator[_Pair]:
    """The entries that one opcode puts in; a single one takes the opcode with it."""
    if len(starts) % 2:
        raise FormatError(f"the pickle is broken at its byte {op.start}: a key without a value")
    ends = [*starts[2::2], op.start]
    if op.name == "SETITEM":
        ends = [op.end]
    for start, end in zip(starts[::2], ends, strict=True):
        yield _Pair(texts.get(start), start, end, op.name == "SETITEM")


def _texts(ops: Sequence[_Op]) -> dict[int, str]:
    """Where opcodes that push a string begin, and which string; those that fetch one from the memo too."""
    texts: dict[int, str] = {}
    memo: dict[int, str] = {}
    for before, op in zip([ops[0], *ops], ops, strict=False):
        if op.name in _TEXTS and isinstance(op.arg, str):
            texts[op.start] = op.arg
        elif op.name in _PUTS and before.start in texts:
            memo[int(op.arg)] = texts[before.start]
        elif op.name in _GETS and int(op.arg) in memo:
            texts[op.start] = memo[int(op.arg)]
    return texts


def _hoisted(data: bytes, ops: Sequence[_Op], pair: _Pair) -> bytes:
    """An entry that memoizes what the rest fetches of what this pair does; nothing when it fetches nothing."""
    starts = [op.start for op in ops]
    first, last = bisect_right(starts, pair.start) - 1, bisect_right(starts, pair.end - 1)
    inside = {int(op.arg): at for at, op in enumerate(ops[first:last], first) if op.name in _PUTS}
    needed: dict[int, bytes] = {}
    for op in ops[last:]:
        if op.name in _PUTS:
            inside.pop(int(op.arg), None)  # from here on the number means something else
        elif op.name in _GETS and int(op.arg) in inside:
            at = inside[int(op.arg)]
            if ops[at - 1].name not in _SIMPLE:
                raise FormatError(f"what is kept shares a {ops[at - 1].name} with what would be left out")
            needed[int(op.arg)] = data[ops[at - 1].start : ops[at].end]
    if not needed:
        return b""
    key = LEFT_OVER.encode()
    entry = b"X" + len(key).to_bytes(4, "little") + key + b"(" + b"".join(needed.values()) + b"t"
    return entry + (b"s" if pair.alone else b"")
