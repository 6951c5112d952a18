"""What S3 says of the bytes of an object, and whether that fits what was sent.

An ETag is the MD5 of the bytes, or of the MD5s of the parts with `-` and their number, unless the server encrypts with
keys of its own, or is no AWS: then it may be anything. A SHA-256 that was sent along is given back by newer servers, in
the same two forms.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpu_train.sinks.objects.content import Content, parts


class Digest(NamedTuple):
    """Of an object, or of a part of one.

    Attributes:
        size_bytes: how long it is.
        md5: of the bytes.
        sha256: of the bytes; None where that was not asked for.
        parts: how many parts these are digests of the digests of; 0 for plain bytes.
    """

    size_bytes: int
    md5: bytes
    sha256: bytes | None
    parts: int = 0

    @classmethod
    def of(cls, data: bytes, with_sha256: bool) -> Digest:
        """Of plain bytes."""
        sha256 = hashlib.sha256(data).digest() if with_sha256 else None
        return cls(len(data), hashlib.md5(data, usedforsecurity=False).digest(), sha256)

    @classmethod
    def of_content(cls, content: Content, step_bytes: int, with_sha256: bool) -> Digest:
        """Of a content, read so many bytes at a time."""
        md5 = hashlib.md5(usedforsecurity=False)
        sha256 = hashlib.sha256() if with_sha256 else None
        for part in parts(content, step_bytes):
            md5.update(part)
            if sha256 is not None:
                sha256.update(part)
        return cls(content.size_bytes, md5.digest(), sha256.digest() if sha256 is not None else None)

    @classmethod
    def of_parts(cls, pieces: Sequence[Digest]) -> Digest:
        """Of an object that is made of parts."""
        sha256 = [part.sha256 for part in pieces if part.sha256 is not None]
        return cls(
            sum(part.size_bytes for part in pieces),
            hashlib.md5(b"".join(part.md5 for part in pieces), usedforsecurity=False).digest(),
            hashlib.sha256(b"".join(sha256)).digest() if sha256 and len(sha256) == len(pieces) else None,
            len(pieces),
        )

    @property
    def etag(self) -> str:
        """As an ETag."""
        return self.md5.hex() + (f"-{self.parts}" if self.parts else "")

    @property
    def checksum_sha256(self) -> str | None:
        """As the header x-amz-checksum-sha256 of an answer."""
        if self.sha256 is None:
            return None
        return b64encode(self.sha256).decode() + (f"-{self.parts}" if self.parts else "")

    def headers(self) -> dict[str, str]:
        """What is sent along with plain bytes, so that the server compares."""
        found = {"ContentMD5": b64encode(self.md5).decode()}
        if self.sha256 is not None:
            found["ChecksumSHA256"] = b64encode(self.sha256).decode()
        return found

    def fits(self, size_bytes: int, answer: Mapping[str, Any]) -> bool | None:
        """Whether an answer, or a row of a listing, speaks of the same bytes; None when it does not tell."""
        if size_bytes != self.size_bytes:
            return False
        if etag_of(answer) == self.etag:
            return True
        told = answer.get("ChecksumSHA256")
        if told and self.checksum_sha256 and told.count("-") == self.checksum_sha256.count("-"):
            return bool(told == self.checksum_sha256)
        return None


def etag_of(answer: Mapping[str, Any]) -> str:
    """An answer's ETag, without quotes."""
    return str(answer.get("ETag", "")).strip('"').lower()
