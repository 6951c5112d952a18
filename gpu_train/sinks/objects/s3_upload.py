"""One object that is sent in parts. An upload that was broken off is taken up: what arrived is not sent again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from gpu_train.errors import Refused, SinkFailed
from gpu_train.sinks.objects.declined import Declined
from gpu_train.sinks.objects.s3_bucket import Bucket
from gpu_train.sinks.objects.s3_digest import Digest, etag_of

MAX_PARTS = 10_000
_MIB = 1 << 20


def part_bytes_of(size_bytes: int, wanted: int) -> int:
    """How large the parts of an object are: as wanted, unless there would be too many. It follows from the size alone,
    so that another process cuts in the same places.
    """
    least = -(-size_bytes // MAX_PARTS)
    return max(wanted, -(-least // _MIB) * _MIB)


class Upload:
    """See the module; one thread begins and ends it, several send parts."""

    def __init__(self, bucket: Bucket, key: str, full: str, with_sha256: bool) -> None:
        """`key` is for messages, `full` the one in the bucket."""
        self._bucket = bucket
        self._key = key
        self._full = full
        self._id = ""
        self._there: dict[int, Mapping[str, Any]] = {}
        self._sent: dict[int, tuple[Digest, str]] = {}
        self.with_sha256 = with_sha256

    def begin(self, **params: Any) -> None:
        """Begin a new one."""
        if self.with_sha256:
            params["ChecksumAlgorithm"] = "SHA256"
        self._id = self._bucket.ask("create_multipart_upload", self._key, Key=self._full, **params)["UploadId"]

    def take_up(self) -> bool:
        """Go on with the newest one of this object that was broken off, and abort all others; False without any."""
        try:
            found = sorted(self._unfinished(), key=lambda one: str(one.get("Initiated")), reverse=True)
        except Refused:  # some have no right to list them: then the upload begins anew
            return False
        for one in found:
            if self._id:
                self._abort(one["UploadId"])
                continue
            with suppress(Declined):  # completed or aborted by now
                self._there = {part["PartNumber"]: part for part in self._parts(one["UploadId"])}
                self._id = one["UploadId"]
                self.with_sha256 = one.get("ChecksumAlgorithm") == "SHA256"
        return bool(self._id)

    def send(self, number: int, data: bytes) -> int:
        """Send a part, the first has number 1, unless it is there already; how many bytes were sent."""
        digest = Digest.of(data, self.with_sha256)
        there = self._there.get(number)
        if there is not None and digest.fits(there["Size"], there):
            self._sent[number] = digest, there["ETag"]
            return 0
        answer = self._bucket.ask(
            "upload_part", self._key, Key=self._full, UploadId=self._id, PartNumber=number, Body=data,
            **digest.headers(),
        )  # fmt: skip
        self._sent[number] = digest, answer["ETag"]
        return len(data)

    @property
    def digest(self) -> Digest:
        """What the object should be, when all parts are sent."""
        return Digest.of_parts([self._sent[number][0] for number in sorted(self._sent)])

    def complete(self, expected: tuple[str, ...], **params: Any) -> None:
        """Make one object of the parts.

        Raises:
            Declined: see `Bucket.ask`.
        """
        parts = []
        for number in sorted(self._sent):
            digest, etag = self._sent[number]
            part: dict[str, Any] = {"PartNumber": number, "ETag": etag}
            if digest.checksum_sha256 is not None:
                part["ChecksumSHA256"] = digest.checksum_sha256
            parts.append(part)
        self._bucket.ask(
            "complete_multipart_upload", self._key, expected=expected, Key=self._full, UploadId=self._id,
            MultipartUpload={"Parts": parts}, **params,
        )  # fmt: skip

    def abort(self) -> None:
        """Have the server forget the parts; it is no matter when it cannot be reached."""
        if self._id:
            self._abort(self._id)

    def _abort(self, upload: str) -> None:
        with suppress(SinkFailed, Declined):
            self._bucket.ask(
                "abort_multipart_upload", self._key, expected=("NoSuchUpload", "404"), Key=self._full, UploadId=upload
            )

    def _unfinished(self) -> Iterator[Mapping[str, Any]]:
        markers: dict[str, str] = {}
        while True:
            answer = self._bucket.ask("list_multipart_uploads", self._key, Prefix=self._full, **markers)
            yield from (one for one in answer.get("Uploads", ()) if one["Key"] == self._full)
            if not answer.get("IsTruncated") or not answer.get("NextKeyMarker"):
                return
            markers = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer.get("NextUploadIdMarker", "")}

    def _parts(self, upload: str) -> Iterator[Mapping[str, Any]]:
        after = 0
        while True:
            answer = self._bucket.ask(
                "list_parts", self._key, expected=("NoSuchUpload", "404"), Key=self._full, UploadId=upload,
                PartNumberMarker=after,
            )  # fmt: skip
            yield from (part for part in answer.get("Parts", ()) if etag_of(part))
            if not answer.get("IsTruncated"):
                return
            after = answer["NextPartNumberMarker"]
