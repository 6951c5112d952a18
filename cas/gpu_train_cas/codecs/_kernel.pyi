Buffer = bytes | bytearray | memoryview

FACE: int

def variants() -> list[str]: ...
def encode(
    block: Buffer,
    element: int,
    tokens: bool,
    source: int,
    base: Buffer | None,
    sibling: Buffer | None,
    sibling_digest: bytes | None,
    row: int,
    first: int,
    limit: int,
    variant: str | None,
    /,
) -> bytearray | None: ...
def decode(
    payload: Buffer, out: memoryview, base: Buffer | None, sibling: Buffer | None, variant: str | None, /
) -> int: ...
