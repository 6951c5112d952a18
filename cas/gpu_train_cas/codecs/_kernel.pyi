Buffer = bytes | bytearray | memoryview

FACE: int
CONSTANT: int
REGULAR: int
REPEATS: int
DELTA: int
WRONG: int

class Memory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

def split(block: Buffer, width: int, rotated: bool, /) -> Memory: ...
def join(planes: list[Buffer], count: int, width: int, rotated: bool, tail: Buffer, /) -> Memory: ...
def variants() -> list[str]: ...
def encode(
    block: Buffer,
    element: int,
    tokens: bool,
    source: int,
    base: Buffer | None,
    sibling: Buffer | None,
    sibling_digest: bytes | None,
    prediction: Buffer | None,
    row: int,
    first: int,
    limit: int,
    variant: str | None,
    /,
) -> Memory | None: ...
def pack(
    block: Buffer,
    element: int,
    base: Buffer | None,
    sibling: Buffer | None,
    sibling_digest: bytes | None,
    predicts: int,
    row: int,
    first: int,
    is_moment: bool,
    limit: int,
    variant: str | None,
    /,
) -> tuple[Memory | None, int]: ...
def decode(
    payload: Buffer, length: int, base: Buffer | None, sibling: Buffer | None, variant: str | None, /
) -> Memory | int: ...
def prove(
    payload: Buffer, block: Buffer, base: Buffer | None, sibling: Buffer | None, variant: str | None, /
) -> int: ...
