"""The text that the corpus' models train on."""

from __future__ import annotations

import random
import sys
import sysconfig
from pathlib import Path

LEAST = 10_000  # characters; below this a text repeats itself within one batch
SUFFIXES = (".txt", ".md", ".py")


def _files(source: str) -> tuple[Path, list[Path]]:
    if source == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        skip = {"site-packages", "dist-packages"}
        return root, [path for path in root.rglob("*.py") if not skip & set(path.parts)]
    root = Path(source)
    return root, [root] if root.is_file() else [p for p in root.rglob("*") if p.suffix in SUFFIXES]


def load_text(source: str, seed: int, characters: int) -> str:
    """That many characters from a file, a folder of text files, or "stdlib", Python's own standard library.

    The files come in an order that `seed` decides; a text that is too short is repeated. Exits with a message
    where there is next to no text.
    """
    root, files = _files(source)
    files.sort(key=lambda path: path.relative_to(root).as_posix() if path != root else "")
    random.Random(seed).shuffle(files)
    parts: list[str] = []
    size = 0
    for path in files:
        if size >= max(characters, LEAST):
            break
        try:
            parts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        size += len(parts[-1])
    text = "\n".join(parts)
    if len(text) < LEAST:
        sys.exit(f"corpus.py: --text {source}: {len(text)} characters of text found, {LEAST} needed")
    while len(text) < characters:
        text += "\n" + text
    return text[:characters]
