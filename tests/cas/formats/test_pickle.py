import collections
import io
import os
import pickle as real
import pickletools

import pytest

from gpu_train_cas.formats.layout import FormatError
from gpu_train_cas.formats.pickle import _STEPS, DICT, LIST, SET, Global, Object, Reference, read


def plain(value):
    """The picture turned back into the value, for builtins."""
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if not isinstance(value, Object):
        return value
    kinds = {DICT: dict, LIST: list, SET: set}
    if value.maker == DICT:
        return {plain(k): plain(v) for k, v in value.items or ()}
    return kinds[value.maker](plain(v) for v in value.elements or ())


STATE = {
    "none": None, "yes": True, "no": False, "text": "ä" * 300, "short": "x", "bytes": b"\x00\xff" * 200,
    "ints": [0, 255, 256, 65536, -1, 2**31, 2**100, -(2**5000), True], "floats": (1.5, -0.0, 1e300),
    "nested": {"a": {"b": [{}, [], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]}}, 5: {1, 2, 3},
}  # fmt: skip


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_builtins_of_every_kind(protocol):
    found = read(real.dumps(STATE, protocol))
    if protocol == 3:  # sets have opcodes of their own from 4 on
        found.items = [(k, v) for k, v in found.items if k != 5]
    assert plain(found) == {k: v for k, v in STATE.items() if k != 5 or protocol > 3}


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_builtins_in_the_words_of_old_protocols(protocol):
    state = {k: v for k, v in STATE.items() if k not in ("bytes", 5, "text")}
    assert plain(read(real.dumps(state, protocol))) == state


class Thing:
    def __init__(self, weight):
        self.weight = weight


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_pictures(protocol):
    found = read(real.dumps(Thing(collections.OrderedDict(a=1)), protocol))
    assert isinstance(found, Object)
    ((name, weight),) = found.state.items
    assert name == "weight"
    assert weight.maker == Global("collections", "OrderedDict")
    assert weight.items == [("a", 1)] or plain(weight.args[0]) == [["a", 1]]


def test_shared_and_cyclic_values_are_one_object():
    cycle: list = [[1]]
    cycle += [cycle[0], cycle]
    found = read(real.dumps(cycle))
    assert found.elements[0] is found.elements[1]
    assert found.elements[2] is found


def test_persistent_ids():
    class Pickler(real.Pickler):
        def persistent_id(self, obj):
            return ("storage", "7") if isinstance(obj, Thing) else None

    out = io.BytesIO()
    Pickler(out, 2).dump([Thing(1)])
    (reference,) = read(out.getvalue()).elements
    assert isinstance(reference, Reference)
    assert reference.pid == ("storage", "7")


class Evil:
    def __init__(self, call, *args):
        self.reduced = call, args

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_has_no_effect(tmp_path, protocol):
    mark = tmp_path / "mark"
    evil = [Evil(os.system, f"touch {mark}"), Evil(eval, f"open({str(mark)!r}, 'w')"), Evil(exec, "import antigravity")]
    found = read(real.dumps(evil, protocol))
    assert [e.maker.name for e in found.elements] == ["system", "eval", "exec"]
    assert not mark.exists()


def test_a_malicious_import_has_no_effect():
    found = read(b"cno_such_module.at_all\nboom\n(S'x'\ntR.")
    assert found.maker == Global("no_such_module.at_all", "boom")
    assert found.args == ("x",)


def test_every_opcode_of_python_is_known():
    assert {ord(op.code) for op in pickletools.opcodes} == _STEPS.keys() | {ord(".")}


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"(", b"(.", b"N", b"\xff", b"R.", b"))R", b"0", b"1", b"h\x05.", b"q\x00.", b"g1\n.", b"p1\n.",
        b"X\xff\xff\xff\xff.", b"\x8d" + b"\xff" * 8 + b".", b"\x8b\xff\xff\xff\x7f.", b"T\xff\xff\xff\xff.",
        b"cos", b"I" + b"9" * 5000 + b"\n.", b"L" + b"9" * 5000 + b"L\n.", b"Fx\n.", b"Ix\n.", b"s.", b"}(NuN.",
        b"u.", b"Q.", b"o.", b"(o.", b"\x93.", b"a.", b"b.", b"\x86.", b"\x95\x00", b"x" * 100,
    ],
)  # fmt: skip
def test_broken_pickles_are_refused(data):
    with pytest.raises(FormatError):
        read(data)


@pytest.mark.parametrize("unit", [b"}", b"(", b"]", b"N", b"2", b"q\x00", b"\x85"])
def test_endless_pickles_end(unit):
    with pytest.raises(FormatError, match="more than"):
        read(b"N" + unit * 10_001, max_opcodes=10_000)


def test_deep_nesting_is_read_without_recursion():
    depth = 200_000
    for data in (
        b")" + b"\x85" * depth,
        b"]" * depth + b"a" * (depth - 1),
        b"N" + b"N\x86" * depth,
        b"N" + b")R" * depth,
    ):
        value = read(data + b".")
        assert value is not None
        del value  # freed without recursion, too


def test_a_long_number_is_read():
    assert read(b"\x8b" + (1 << 20).to_bytes(4, "little") + b"\x7f" * (1 << 20) + b".").bit_length() == (8 << 20) - 1
