"""The doors of the package: which container a file is, where its tensors lie, whether it is complete."""

from __future__ import annotations

from gpu_train_cas.formats.layout import FormatError, Layout, UnknownFormat
from gpu_train_cas.formats.source import Source


def parse(source: Source, name: str = "") -> Layout:
    """Where the tensors lie; for explorers, who want to know what is wrong.

    Raises:
        FormatError: for a known container that is broken, cut short or beyond the limits of the spec.
        UnknownFormat: for a file that is no container we know.
    """
    raise UnknownFormat(f"{name or 'the file'} is no container of tensors that we know")


def layout(source: Source, name: str = "") -> Layout | None:
    """Where the tensors lie, or None for a file that is to be treated as opaque bytes.

    Bad content never raises; OSError from reading does.
    """
    try:
        return parse(source, name)
    except (FormatError, UnknownFormat):
        return None


def self_proof(source: Source, name: str = "") -> bool | None:
    """Whether the file proves by its own bytes that it is complete, from its head and tail alone.

    True: it does. False: it is a known container and not complete. None: nothing in it can tell.
    """
    return None
