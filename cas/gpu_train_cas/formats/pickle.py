"""A reader of pickles that builds a picture of the state and nothing else.

It resolves no global, imports nothing, calls nothing: GLOBAL pushes a `Global`, REDUCE pushes an
`Object` that remembers what would have been called. So any pickle can be read, hostile ones too.
Work and memory are bounded: one step per opcode, at most MAX_OPCODES of them, strings no longer than
the pickle, no recursion; shared and cyclic structures are what they are in memory, a graph.
Opcodes: CPython's pickletools.py (protocols 0 to 5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gpu_train_cas.formats.layout import FormatError

MAX_OPCODES: Final = 3_000_000


@dataclass(frozen=True, slots=True)
class Global:
    """A name in a module, not looked up."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A persistent id: whatever the pickle says stands for an object kept elsewhere."""

    pid: Any


@dataclass(slots=True, eq=False)
class Object:
    """What a call of `maker` with `args` would have made, and what was put into it afterwards.

    Dicts, lists and sets are objects of DICT, LIST and SET: their content lies in `items` (pairs) or
    `elements`; so does that of an OrderedDict or a deque. `state` is what BUILD gave, None if it did not.
    """

    maker: Any
    args: Any = ()
    items: list[tuple[Any, Any]] | None = None
    elements: list[Any] | None = None
    state: Any = None


DICT: Final = Global("builtins", "dict")
LIST: Final = Global("builtins", "list")
SET: Final = Global("builtins", "set")
UNKNOWN: Final = Global("", "")
"""Stands for what lies outside of the pickle: extension codes and out-of-band buffers."""


def read(data: bytes, max_opcodes: int = MAX_OPCODES) -> Any:
    """The state that a pickle describes: None, bool, int, float, str, bytes, tuple and the classes above.

    Raises:
        FormatError: for bytes that are no pickle, end early or have more opcodes than the limit.
    """
    return _run(_Machine(data), max_opcodes)


def references(data: bytes, max_opcodes: int = MAX_OPCODES) -> list[Reference]:
    """Every persistent id that reading the pickle asks for, wherever it goes; raises as `read`."""
    machine = _Machine(data)
    _run(machine, max_opcodes)
    return machine.references


def _run(machine: _Machine, max_opcodes: int) -> Any:
    try:
        return machine.run(max_opcodes)
    except (IndexError, KeyError, ValueError, struct.error) as e:
        raise FormatError(f"the pickle is broken at its byte {machine.at}: {e!r}") from e


def _integer(text: bytes) -> int | bool:
    return {b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text.rstrip(b"L"))


def _long(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _latin(data: bytes) -> str:
    return data.decode("latin-1")


class _Machine:
    """The stack machine; one method per opcode that does more than push a value."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.references: list[Reference] = []

    def run(self, max_opcodes: int) -> Any:
        data = self.data
        for _ in range(max_opcodes):
            op = data[self.at]
            self.at += 1
            if op == ord("."):
                return self.stack.pop()
            _STEPS[op](self)
        raise FormatError(f"the pickle has more than {max_opcodes} opcodes")

    def take(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise ValueError(f"{length} bytes are needed and {len(self.data) - start} left")
        return self.data[start : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        return self.take(self.data.index(b"\n", self.at) + 1 - self.at)[:-1]

    def pop(self, count: int) -> list[Any]:
        """The top values, bottom first."""
        if count > len(self.stack):
            raise ValueError("the stack is empty")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def refer(self, pid: Any) -> None:
        self.references.append(Reference(pid))
        self.stack.append(self.references[-1])

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marks.pop()
        return values

    def set_items(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Object):
            target.items = target.items or []
            target.items.extend(zip(flat[::2], flat[1::2], strict=True))

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Object):
            target.elements = target.elements or []
            target.elements.extend(values)

    def build(self) -> None:
        (state,) = self.pop(1)
        target = self.stack[-1]
        if isinstance(target, Object):
            target.state = state

    def call(self, count: int) -> None:
        """REDUCE and its kin: the maker, its arguments and perhaps keywords, of which none is called."""
        maker, args, *_ = self.pop(count)
        self.stack.append(Object(maker, args))

    def made(self, values: list[Any]) -> None:
        self.stack.append(Object(values[0], tuple(values[1:])))

    def dictionary(self, flat: list[Any]) -> None:
        self.stack.append(Object(DICT))
        self.set_items(flat)

    def sequence(self, maker: Global, values: list[Any]) -> None:
        self.stack.append(Object(maker, elements=values))

    def named(self, module: Any, name: Any) -> None:
        plain = isinstance(module, str) and isinstance(name, str)
        self.stack.append(Global(module, name) if plain else UNKNOWN)

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def put(self) -> None:
        self.memo[int(self.line())] = self.stack[-1]

    def extension(self, width: int) -> None:
        self.take(width)
        self.push(UNKNOWN)

    def drop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.to_mark()


_Step = Callable[[_Machine], object]


def _constant(value: Any) -> _Step:
    return lambda m: m.stack.append(value)


def _empty(maker: Global) -> _Step:
    return lambda m: m.stack.append(Object(maker))


def _fixed(form: str) -> _Step:
    layout = struct.Struct(form)
    return lambda m: m.stack.append(layout.unpack(m.take(layout.size))[0])


def _counted(width: int, decode: Callable[[bytes], Any]) -> _Step:
    return lambda m: m.stack.append(decode(m.take(m.number(width))))


def _line(decode: Callable[[bytes], Any]) -> _Step:
    return lambda m: m.stack.append(decode(m.line()))


def _tuple(count: int) -> _Step:
    return lambda m: m.push(tuple(m.pop(count)))


def _get(width: int) -> _Step:
    return lambda m: m.stack.append(m.memo[m.number(width)])


def _put(width: int) -> _Step:
    return lambda m: m.memo.__setitem__(m.number(width), m.stack[-1])


def _skip(width: int) -> _Step:
    return lambda m: m.take(width)


_PUSHES: dict[int, _Step] = {
    ord("N"): _constant(None), 0x88: _constant(True), 0x89: _constant(False), ord(")"): _constant(()),
    0x97: _constant(UNKNOWN),
    ord("}"): _empty(DICT), ord("]"): _empty(LIST), 0x8F: _empty(SET),
    ord("K"): _fixed("<B"), ord("M"): _fixed("<H"), ord("J"): _fixed("<i"), ord("G"): _fixed(">d"),
    0x8C: _counted(1, _text), ord("X"): _counted(4, _text), 0x8D: _counted(8, _text),
    ord("U"): _counted(1, _latin), ord("T"): _counted(4, _latin),
    ord("C"): _counted(1, bytes), ord("B"): _counted(4, bytes), 0x8E: _counted(8, bytes),
    0x96: _counted(8, bytes), 0x8A: _counted(1, _long), 0x8B: _counted(4, _long),
    ord("I"): _line(_integer), ord("L"): _line(_integer), ord("F"): _line(float), ord("V"): _line(_latin),
    ord("S"): _line(lambda line: _latin(line.strip()[1:-1])),
    ord("P"): lambda m: m.refer(_latin(m.line())),
    0x85: _tuple(1), 0x86: _tuple(2), 0x87: _tuple(3),
    ord("h"): _get(1), ord("j"): _get(4), ord("q"): _put(1), ord("r"): _put(4),
    0x80: _skip(1), 0x95: _skip(8), 0x98: _skip(0),  # PROTO, FRAME, READONLY_BUFFER: nothing that we need
}  # fmt: skip
_CHANGES: dict[int, _Step] = {
    ord("("): _Machine.mark,
    ord("0"): _Machine.drop,
    ord("1"): _Machine.to_mark,
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("t"): lambda m: m.push(tuple(m.to_mark())),
    ord("l"): lambda m: m.sequence(LIST, m.to_mark()),
    0x91: lambda m: m.sequence(SET, m.to_mark()),
    ord("d"): lambda m: m.dictionary(m.to_mark()),
    ord("a"): lambda m: m.append(m.pop(1)),
    ord("e"): lambda m: m.append(m.to_mark()),
    0x90: lambda m: m.append(m.to_mark()),
    ord("s"): lambda m: m.set_items(m.pop(2)),
    ord("u"): lambda m: m.set_items(m.to_mark()),
    ord("b"): _Machine.build,
    ord("R"): lambda m: m.call(2),
    0x81: lambda m: m.call(2),
    0x92: lambda m: m.call(3),
    ord("o"): lambda m: m.made(m.to_mark()),
    ord("i"): lambda m: m.made([Global(_latin(m.line()), _latin(m.line())), *m.to_mark()]),
    ord("c"): lambda m: m.named(_latin(m.line()), _latin(m.line())),
    0x93: lambda m: m.named(*m.pop(2)),
    ord("Q"): lambda m: m.refer(*m.pop(1)),
    ord("p"): _Machine.put,
    ord("g"): lambda m: m.push(m.memo[int(m.line())]),
    0x94: _Machine.memoize,
    0x82: lambda m: m.extension(1),
    0x83: lambda m: m.extension(2),
    0x84: lambda m: m.extension(4),
}
_STEPS: dict[int, _Step] = _PUSHES | _CHANGES
