"""Objects in a bucket of Google Cloud Storage.

Every object has a CRC-32C there, which proves what was sent. Large ones are sent through resumable sessions: what
arrived before a line broke is not sent again. Such a session is known to this process only; after its end the object
begins anew.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_train.errors import Corrupted, Refused, Taken, Unavailable
from gpu_train.sinks.objects.content import Content, parts
from gpu_train.sinks.objects.crew import Crew, Work
from gpu_train.sinks.objects.declined import Declined
from gpu_train.sinks.objects.key import Keys
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import NotFound, SourceChanged

if TYPE_CHECKING:
    from gpu_train.sinks.objects.gcs_bucket import Credentials

PART_BYTES = 8 << 20
"""Larger objects are sent in resumable sessions, so much at a time; a multiple of 256 KiB, as the protocol wants."""

_MANY, _LARGE = 8, 2
"""How many objects in one request, and in sessions, are under way at a time; the library keeps ten connections."""

_LISTED = 20
"""From so many objects on, one listing tells the checksums of all, where each would take a request."""

_PER_PAGE = 1000
_FIELDS = "items(name,size,crc32c),nextPageToken"


class _Sent(NamedTuple):
    """An object that the server took, and its checksum."""

    one: Put
    crc32c: str


class GcsObjects:
    """See `ObjectStore`."""

    few_files = False

    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint: str | None = None, project: str | None = None,
        credentials: Credentials | None = None, storage_class: str | None = None, timeout_s: float = 60.0,
    ) -> None:  # fmt: skip
        """A bucket, and what all keys begin with there.

        Args:
            endpoint: the server's URL; None for Google's, or what STORAGE_EMULATOR_HOST says.
            project: of the credentials; only needed where Google wants to know who pays.
            credentials: see `gcs_bucket.Credentials`; it is called again when those it gave are not accepted any more.
            storage_class: such as "NEARLINE"; None for the bucket's own.
            timeout_s: how long an answer, or the next bytes of one, are waited for.

        Raises:
            Refused: when the library of Google is not installed.
            UsageError: when there are credentials in `endpoint`.
        """
        try:
            from google_crc32c import extend  # noqa: PLC0415

            from gpu_train.sinks.objects import gcs_bucket  # noqa: PLC0415 - half a second, and often not installed
        except ImportError as e:
            raise Refused(f"gs://{bucket}: {e.name} is not installed; pip install 'gpu-train[gcs]'") from e
        self.address = f"gs://{bucket}/{prefix.strip('/')}".rstrip("/")
        self._keys = Keys(prefix, self.address)
        self._bucket = gcs_bucket.Bucket(
            bucket, self.address, endpoint=endpoint, project=project, credentials=credentials, timeout_s=timeout_s
        )
        self._extend = extend
        self._storage_class = storage_class
        self._many, self._large = Crew(_MANY), Crew(_LARGE)
        self._bucket_is_there = False
        self._sessions: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        small = [one for one in objects if one.content.size_bytes <= PART_BYTES]
        large = [one for one in objects if one.content.size_bytes > PART_BYTES]
        work: Work[_Sent | None] = Work()
        work.begin(self._large, [partial(self._put_long, one, on_bytes, work) for one in large])
        work.begin(self._many, [partial(self._put_whole, one, on_bytes) for one in small])
        sent = [one for one in work.finish() if one is not None]
        proved = self._listed(sent) if len(sent) >= _LISTED else set()
        proof: Work[None] = Work()
        proof.begin(self._many, [partial(self._prove, one) for one in sent if one.one.key not in proved])
        proof.finish()

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        blob = self._look(key)
        return None if blob is None else int(blob.size)

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`."""
        blob = self._look(key)
        if blob is None or blob.size != content.size_bytes:
            return False
        crc = 0
        for part in parts(content):
            crc = self._extend(crc, part)
        return bool(blob.crc32c == _text(crc))

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        full = self._keys.full(key)

        def fetch(bucket: Any) -> bytes:
            data: bytes = bucket.blob(full).download_as_bytes(
                start=offset, end=offset + length - 1, raw_download=True, checksum=None, retry=None,
                timeout=self._bucket.timeout_s,
            )  # fmt: skip
            return data

        data = b""
        if length > 0:
            try:
                data = self._bucket.ask(fetch, key, expected=("404", "416"))
            except Declined as e:
                if e.code == "416":
                    return b""
                self._need_bucket()
                raise NotFound(f"{self.address}: there is no {key}") from None
        if len(data) < length or length <= 0:  # that is right at the end only
            size = self.size(key)
            if size is None:
                raise NotFound(f"{self.address}: there is no {key}")
            if len(data) < min(length, size - offset):
                raise Unavailable(f"{self.address}: {key}: only {len(data)} of {length} bytes arrived")
        return data[:length]

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        for page in self._pages(self._keys.full_prefix(prefix)):
            for blob in page:
                if not blob.name.endswith("/"):  # what some programs make as a folder
                    yield Found(self._keys.own(blob.name), blob.size)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        work: Work[None] = Work()
        work.begin(self._many, [partial(self._delete, key) for key in keys])
        work.finish()

    def close(self) -> None:
        """See `ObjectStore`."""
        self._large.close()
        self._many.close()
        self._bucket.close()

    def _put_whole(self, one: Put, on_bytes: OnBytes) -> _Sent | None:
        """Send one in a single request; None when it was there already."""
        if one.again and self.holds(one.key, one.content):
            return None
        data = _read(one, one.content.size_bytes, 0)

        def send(bucket: Any) -> None:
            self._blob(bucket, one).upload_from_string(
                data, "application/octet-stream", checksum="crc32c", retry=None, timeout=self._bucket.timeout_s,
                if_generation_match=0 if one.only_new else None,
            )  # fmt: skip

        try:
            self._bucket.ask(send, one.key, expected=("412",))
        except Declined:
            self._need_same(one)
            return None
        on_bytes(len(data))
        return _Sent(one, _text(self._extend(0, data)))

    def _put_long(self, one: Put, on_bytes: OnBytes, work: Work[_Sent | None]) -> _Sent | None:
        """Send one piece by piece; None when it was there already."""
        if one.again and self.holds(one.key, one.content):
            return None
        if one.only_new and self._look(one.key) is not None:  # else that is known at the end only
            self._need_same(one)
            return None
        session, there = self._session(one)
        size, crc = one.content.size_bytes, 0
        try:
            for at in range(0, size, PART_BYTES):
                if work.stopped:
                    raise Unavailable(f"{self.address}: {one.key}: broken off, since another one failed")
                data = _read(one, min(PART_BYTES, size - at), at)
                crc = self._extend(crc, data)
                new = data[max(0, there - at) :]
                if new:
                    self._send_piece(session, one.key, new, at + len(data) - len(new), size)
                    on_bytes(len(new))
        except Declined as e:
            with self._lock:
                self._sessions.pop(one.key, None)
            if e.code != "412":
                raise Unavailable(f"{self.address}: {one.key}: the upload was broken off by the server") from None
            self._need_same(one)
            return None
        with self._lock:
            self._sessions.pop(one.key, None)
        return _Sent(one, _text(crc))

    def _session(self, one: Put) -> tuple[str, int]:
        """The URL of a session, and how many bytes arrived through it already."""
        size = one.content.size_bytes
        with self._lock:
            known = self._sessions.pop(one.key, None)
        if known is not None and one.again:
            try:
                answer = self._bucket.send(known, b"", f"bytes */{size}", one.key)
            except Declined:  # it is over
                known = None
            else:
                there = _arrived(answer) if answer.status_code == 308 else size
        if known is None or not one.again:
            there = 0
            known = self._bucket.ask(
                lambda bucket: self._blob(bucket, one).create_resumable_upload_session(
                    "application/octet-stream", size, retry=None, timeout=self._bucket.timeout_s,
                    if_generation_match=0 if one.only_new else None,
                ), one.key,
            )  # fmt: skip
        with self._lock:
            self._sessions[one.key] = known
        return known, there

    def _send_piece(self, session: str, key: str, data: bytes, at: int, size: int) -> None:
        """Send bytes of a session; what the server did not take at first is sent again."""
        end = at + len(data)
        while at < end:
            answer = self._bucket.send(session, data[len(data) - (end - at) :], f"bytes {at}-{end - 1}/{size}", key)
            arrived = _arrived(answer) if answer.status_code == 308 else size
            if arrived <= at:
                raise Unavailable(f"{self.address}: {key}: the server takes no more of it now")
            at = arrived

    def _prove(self, sent: _Sent) -> None:
        """Compare what is there with what was sent."""
        one, crc32c = sent
        blob = self._look(one.key)
        if blob is None:
            raise Unavailable(f"{self.address}: {one.key} was taken, but is not there")
        if blob.size != one.content.size_bytes or blob.crc32c != crc32c:
            if one.only_new:  # the next attempt must find its name free
                self.delete([one.key])
            raise Corrupted(f"{self.address}: {one.key}: what is there now is not what was sent")

    def _listed(self, sent: Sequence[_Sent]) -> set[str]:
        """Those keys of which a listing says that they are there with the bytes that were sent."""
        wanted = {self._keys.full(one.one.key): one for one in sent}
        names = sorted(wanted)
        proved: set[str] = set()
        pages = 2 + 2 * len(names) // _PER_PAGE  # others may lie between them
        common = commonprefix((names[0], names[-1]))  # noqa: RUF071 - of characters: keys have no folders
        try:
            for page in self._pages(common, names[0]):
                for blob in page:
                    one = wanted.get(blob.name)
                    if one and (blob.size, blob.crc32c) == (one.one.content.size_bytes, one.crc32c):
                        proved.add(one.one.key)
                pages -= 1
                if not pages or (page and page[-1].name > names[-1]):
                    break
        except Refused:  # some have no right to list; then each is asked for
            pass
        return proved

    def _look(self, key: str) -> Any | None:
        """An object with what is known of it; None when there is none."""
        full = self._keys.full(key)

        def look(bucket: Any) -> Any:
            blob = bucket.blob(full)
            blob.reload(retry=None, timeout=self._bucket.timeout_s)
            return blob

        try:
            return self._bucket.ask(look, key, expected=("404",))
        except Declined:
            self._need_bucket()
            return None

    def _need_bucket(self) -> None:
        """Tell a bucket that is missing from an object that is: both answers are 404."""
        if self._bucket_is_there:
            return
        with suppress(Declined):  # there is no right to ask
            self._bucket.ask(
                lambda bucket: bucket.reload(retry=None, timeout=self._bucket.timeout_s), expected=("401", "403")
            )
        self._bucket_is_there = True

    def _need_same(self, one: Put) -> None:
        if not self.holds(one.key, one.content):
            raise Taken(f"{self.address}: {one.key} is there already with other bytes")

    def _blob(self, bucket: Any, one: Put) -> Any:
        """A new object, with its time as rclone writes it, and as gsutil does."""
        blob = bucket.blob(self._keys.full(one.key))
        if self._storage_class:
            blob.storage_class = self._storage_class
        if one.mtime_ns is not None:
            seconds, fraction = divmod(one.mtime_ns, 10**9)
            day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            blob.metadata = {"mtime": f"{day}.{fraction:09}Z", "goog-reserved-file-mtime": str(seconds)}
        return blob

    def _pages(self, prefix: str, start: str | None = None) -> Iterator[Sequence[Any]]:
        token = None
        while True:

            def fetch(bucket: Any, token: str | None = token) -> tuple[Sequence[Any], str | None]:
                found = bucket.list_blobs(
                    prefix=prefix, start_offset=start, page_token=token, max_results=_PER_PAGE, fields=_FIELDS,
                    retry=None, timeout=self._bucket.timeout_s,
                )  # fmt: skip
                return list(next(found.pages, ())), found.next_page_token

            page, token = self._bucket.ask(fetch)
            yield page
            if not token:
                return

    def _delete(self, key: str) -> None:
        full = self._keys.full(key)
        try:
            self._bucket.ask(
                lambda bucket: bucket.blob(full).delete(retry=None, timeout=self._bucket.timeout_s), key,
                expected=("404",),
            )  # fmt: skip
        except Declined:
            self._need_bucket()


def _read(one: Put, length: int, offset: int) -> bytes:
    data = one.content.read(length, offset)
    if len(data) != length:
        raise SourceChanged(f"{one.key} ended early while it was uploaded")
    return data


def _text(crc32c: int) -> str:
    """A checksum as Google writes it."""
    return b64encode(crc32c.to_bytes(4, "big")).decode()


def _arrived(answer: Any) -> int:
    """How many bytes of a session the server has."""
    held = answer.headers.get("Range", "")
    return int(held.rpartition("-")[2]) + 1 if held else 0
