"""Objects in a bucket of AWS S3, or of whatever else speaks its protocol: SeaweedFS, MinIO, Ceph, R2, rclone.

What a server can do beyond the oldest version of the protocol is found out as it answers, and remembered: whether it
keeps an object that is there from being overwritten (If-None-Match), whether its ETags are MD5s, and if not, whether it
gives back a SHA-256. boto3 is loaded with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os.path import commonprefix
from typing import Any, NamedTuple

from gpu_train.errors import Corrupted, Refused, Taken, Unavailable
from gpu_train.sinks.objects.content import Content, parts
from gpu_train.sinks.objects.crew import Crew, Work
from gpu_train.sinks.objects.declined import Declined
from gpu_train.sinks.objects.key import Keys
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train.sinks.objects.s3_bucket import Bucket, Credentials
from gpu_train.sinks.objects.s3_digest import Digest, etag_of
from gpu_train.sinks.objects.s3_failure import Failure, meaning_of
from gpu_train.sinks.objects.s3_upload import Upload, part_bytes_of
from gpu_train_cas.errors import NotFound, SourceChanged

PART_BYTES = 8 << 20
"""Larger objects are sent in parts of this size; the protocol allows none below 5 MiB but the last."""

SMALL_BYTES = 1 << 20
_MANY, _FEW, _LARGE = 16, 8, 4
"""How many small objects, parts or middling objects, and large objects are under way at a time: memory is bounded by
`_FEW` parts and `_MANY` small objects."""

_LISTED = 20
"""From so many small objects on, one listing tells the ETags of all, where each would take a request."""

_MISSING = ("NoSuchKey", "NotFound", "404")
_TAKEN = ("PreconditionFailed", "412")
_PAST_THE_END = ("InvalidRange", "416")
_UNKNOWN = ("NotImplemented", "501")
_NO_BATCH = ("MalformedXML", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest", "405", "400", "404")
_NO_PART = (*_MISSING, *_UNKNOWN, *_PAST_THE_END, "400", "405")
_PER_PAGE = _PER_DELETE = 1000

_Write = Callable[..., object]
"""Writes an object; takes the codes that are expected, and conditions."""


class _Sent(NamedTuple):
    """An object that the server took."""

    one: Put
    digest: Digest


class S3Objects:
    """See `ObjectStore`."""

    few_files = False

    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint: str | None = None, region: str | None = None,
        credentials: Credentials | None = None, storage_class: str | None = None, addressing: str | None = None,
        part_bytes: int = PART_BYTES, timeout_s: float = 60.0,
    ) -> None:  # fmt: skip
        """A bucket, and what all keys begin with there.

        Args:
            endpoint: the server's URL; None for AWS, or what AWS_ENDPOINT_URL_S3 says.
            region: None for what AWS_REGION or ~/.aws/config say.
            credentials: see `Credentials`; it is called again when those it gave have expired.
            storage_class: such as "STANDARD_IA"; None for the bucket's own.
            addressing: "path" or "virtual": where the bucket's name stands in URLs. None for what suits the endpoint.
            part_bytes: from which size on objects are sent in parts, and of which size.
            timeout_s: how long an answer, or the next bytes of one, are waited for.

        Raises:
            UsageError: when there are credentials in `endpoint`.
        """
        self.address = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
        self._keys = Keys(prefix, self.address)
        self._bucket = Bucket(
            bucket, self.address, endpoint=endpoint, region=region, credentials=credentials, addressing=addressing,
            connections=_MANY + _FEW + _LARGE, timeout_s=timeout_s,
        )  # fmt: skip
        self._every: dict[str, Any] = {"StorageClass": storage_class} if storage_class else {}
        self._part_bytes = part_bytes
        self._many, self._few, self._large = Crew(_MANY), Crew(_FEW), Crew(_LARGE)
        self._bucket_is_there = False
        self._with_sha256 = False
        self._etags_are_md5 = False
        self._keeps_what_is_there: bool | None = None
        self._deletes_many = True

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        small: list[Put] = []
        middling: list[Put] = []
        large: list[Put] = []
        for one in objects:
            size = one.content.size_bytes
            (small if size <= SMALL_BYTES else middling if size <= self._part_bytes else large).append(one)
        work: Work[_Sent | None] = Work()
        work.begin(self._large, [partial(self._put_parts, one, on_bytes, work) for one in large])
        work.begin(self._few, [partial(self._put_whole, one, on_bytes) for one in middling])
        work.begin(self._many, [partial(self._put_whole, one, on_bytes) for one in small])
        sent = [one for one in work.finish() if one is not None]
        whole = [one for one in sent if not one.digest.parts]
        proved = self._listed(whole) if len(whole) >= _LISTED else set()
        proof: Work[None] = Work()
        proof.begin(self._many, [partial(self._prove, one) for one in sent if one.one.key not in proved])
        proof.finish()

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        answer = self._head(key)
        return None if answer is None else int(answer["ContentLength"])

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`. Objects that were written by another program may have to be fetched."""
        answer = self._head(key)
        if answer is None or answer["ContentLength"] != content.size_bytes:
            return False
        digest, known = self._digest_like(answer, key, content)
        fits = digest.fits(content.size_bytes, answer)
        if fits is None and known and self._etags_are_md5 and not _is_encrypted(answer):
            return False
        return self._same_bytes(key, content) if fits is None else fits

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        full = self._keys.full(key)
        if length <= 0:
            if self.size(key) is None:
                raise NotFound(f"{self.address}: there is no {key}")
            return b""
        try:
            answer, data = self._bucket.read(
                key, _MISSING + _PAST_THE_END, Key=full, Range=f"bytes={offset}-{offset + length - 1}"
            )
        except Declined as e:
            if e.code in _PAST_THE_END:
                return b""
            raise NotFound(f"{self.address}: there is no {key}") from None
        if "ContentRange" not in answer:  # all of it: it is empty, or the server knows no ranges
            return data[offset : offset + length]
        total = int(answer["ContentRange"].rpartition("/")[2])
        if len(data) != min(length, total - offset):
            raise Unavailable(f"{self.address}: {key}: {len(data)} bytes arrived where {length} were asked for")
        return data

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        for page in self._pages(self._keys.full_prefix(prefix)):
            for row in page:
                if not row["Key"].endswith("/"):  # what some programs make as a folder
                    yield Found(self._keys.own(row["Key"]), row["Size"])

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        full = [self._keys.full(key) for key in keys]
        for at in range(0, len(full), _PER_DELETE):
            some = full[at : at + _PER_DELETE]
            if len(some) == 1 or not self._delete_many(some):
                work: Work[None] = Work()
                work.begin(self._many, [partial(self._delete_one, key) for key in some])
                work.finish()

    def close(self) -> None:
        """See `ObjectStore`."""
        for crew in (self._large, self._few, self._many):
            crew.close()
        self._bucket.close()

    def _put_whole(self, one: Put, on_bytes: OnBytes) -> _Sent | None:
        """Send one in a single request; None when it was there already."""
        if self._is_there(one, look=self._keeps_what_is_there is not True):
            return None
        size = one.content.size_bytes
        data = _read(one, size, 0)
        digest = Digest.of(data, self._with_sha256)
        sending = {"Key": self._keys.full(one.key), "Body": data, **digest.headers(), **self._kept_with(one)}

        def write(expected: tuple[str, ...], **conditions: str) -> None:
            if size > SMALL_BYTES or not self._bucket.put_small(one.key, **sending, **conditions):
                self._bucket.ask("put_object", one.key, expected=expected, **sending, **conditions)

        if not self._write(one, write):
            return None
        if one.only_new and self._keeps_what_is_there is None:
            self._keeps_what_is_there = _is_declined(write)
        on_bytes(size)
        return _Sent(one, digest)

    def _put_parts(self, one: Put, on_bytes: OnBytes, work: Work[_Sent | None]) -> _Sent | None:
        """Send one in parts; None when it was there already."""
        if self._is_there(one, look=True):
            return None
        size = one.content.size_bytes
        step = part_bytes_of(size, self._part_bytes)
        upload = Upload(self._bucket, one.key, self._keys.full(one.key), self._with_sha256)
        if not (one.again and upload.take_up()):
            upload.begin(**self._kept_with(one))

        def send(at: int) -> None:
            on_bytes(upload.send(at // step + 1, _read(one, min(step, size - at), at)))

        pieces: Work[None] = Work(work)
        try:
            pieces.begin(self._few, [partial(send, at) for at in range(0, size, step)])
            pieces.finish()
            if self._write(one, upload.complete):
                return _Sent(one, upload.digest)
            upload.abort()
            return None
        except Unavailable:
            raise  # the next attempt takes it up
        except Exception:
            upload.abort()
            raise

    def _is_there(self, one: Put, look: bool) -> bool:
        """Whether one is there already and need not be sent; for what is to be new this is asked only if `look`.

        Raises:
            Taken: when it was to be new, and others bytes are there.
        """
        if one.again and self.holds(one.key, one.content):
            return True
        if one.only_new and look and self._head(one.key) is not None:
            self._need_same(one)
            return True
        return False

    def _write(self, one: Put, write: _Write) -> bool:
        """Have one written; False when it was to be new and is there already with the same bytes.

        Raises:
            Taken: when it was to be new, and other bytes are there.
        """
        if not one.only_new or self._keeps_what_is_there is False:
            write(())
            return True
        try:
            write(_TAKEN + _UNKNOWN, IfNoneMatch="*")
        except Declined as e:
            if e.code in _UNKNOWN:
                self._keeps_what_is_there = False
                return self._write(one, write)
            self._need_same(one)
            return False
        return True

    def _need_same(self, one: Put) -> None:
        if not self.holds(one.key, one.content):
            raise Taken(f"{self.address}: {one.key} is there already with other bytes")

    def _prove(self, sent: _Sent) -> None:
        """Compare what is there with what was sent."""
        one, digest = sent
        answer = self._head(one.key)
        if answer is None:
            raise Unavailable(f"{self.address}: {one.key} was taken, but is not there")
        fits = digest.fits(int(answer["ContentLength"]), answer)
        if fits is None and self._same_bytes(one.key, one.content):
            self._with_sha256 = True  # ETags that are no MD5s: the next ones may be proved by this
        elif not fits:
            if one.only_new and not self._keeps_what_is_there:  # another wrote it at the same time
                raise Taken(f"{self.address}: {one.key} is there already with other bytes")
            if one.only_new:  # the next attempt must find its name free
                self.delete([one.key])
            raise Corrupted(f"{self.address}: {one.key}: what is there now is not what was sent")
        self._etags_are_md5 |= etag_of(answer) == digest.etag

    def _listed(self, sent: Sequence[_Sent]) -> set[str]:
        """Those keys of which a listing says that they are there with the bytes that were sent."""
        wanted = {self._keys.full(one.one.key): one for one in sent}
        names = sorted(wanted)
        proved: set[str] = set()
        pages = 2 + 2 * len(names) // _PER_PAGE  # others may lie between them
        common = commonprefix((names[0], names[-1]))  # noqa: RUF071 - of characters: keys have no folders
        try:
            for page in self._pages(common, names[0]):
                for row in page:
                    one = wanted.get(row["Key"])
                    if one is not None and one.digest.fits(row["Size"], row):
                        proved.add(one.one.key)
                pages -= 1
                if not pages or (page and page[-1]["Key"] > names[-1]):
                    break
        except Refused:  # some have no right to list; then each is asked for
            pass
        return proved

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            return self._bucket.ask(
                "head_object", key, expected=_MISSING, Key=self._keys.full(key), ChecksumMode="ENABLED"
            )
        except Declined:
            self._need_bucket()
            return None

    def _need_bucket(self) -> None:
        """Tell a bucket that is missing from an object that is: the answers to HEAD are the same."""
        if self._bucket_is_there:
            return
        try:
            self._bucket.ask("head_bucket", expected=(*_MISSING, "NoSuchBucket"))
        except Declined:
            raise Refused(f"{self.address}: there is no such bucket; make it, or correct its name") from None
        except Refused:  # there is no right to ask
            pass
        self._bucket_is_there = True

    def _digest_like(self, answer: Mapping[str, Any], key: str, content: Content) -> tuple[Digest, bool]:
        """Of a content, in the form that an answer has: plain, or of parts; and whether their size is known."""
        with_sha256 = "ChecksumSHA256" in answer
        if "-" not in etag_of(answer):
            return Digest.of_content(content, PART_BYTES, with_sha256), True
        known, step = False, part_bytes_of(content.size_bytes, self._part_bytes)
        try:
            first = self._bucket.ask("head_object", key, expected=_NO_PART, Key=self._keys.full(key), PartNumber=1)
            if first.get("PartsCount"):
                known, step = True, int(first["ContentLength"])
        except Declined:  # then it has hopefully been cut as we do
            pass
        return Digest.of_parts([Digest.of(part, with_sha256) for part in parts(content, step)]), known

    def _same_bytes(self, key: str, content: Content) -> bool:
        """Fetch an object and compare it, up to the first difference."""
        for offset in range(0, content.size_bytes, PART_BYTES):
            part = content.read(PART_BYTES, offset)
            if self.read(key, len(part), offset) != part:
                return False
        return self.size(key) == content.size_bytes

    def _pages(self, prefix: str, after: str = "") -> Iterator[Sequence[Mapping[str, Any]]]:
        params: dict[str, Any] = {"Prefix": prefix, "MaxKeys": _PER_PAGE, **({"StartAfter": after} if after else {})}
        while True:
            answer = self._bucket.ask("list_objects_v2", **params)
            yield answer.get("Contents", [])
            if not answer.get("IsTruncated"):
                return
            params["ContinuationToken"] = answer["NextContinuationToken"]

    def _delete_many(self, full: Sequence[str]) -> bool:
        """Delete in one request; False when that cannot be done here."""
        if not self._deletes_many:
            return False
        try:
            answer = self._bucket.ask(
                "delete_objects", expected=(*_UNKNOWN, *_NO_BATCH),
                Delete={"Objects": [{"Key": key} for key in full], "Quiet": True},
            )  # fmt: skip
        except Declined as e:
            self._deletes_many = e.code == "MalformedXML"  # a name that XML cannot hold: only these are done singly
            return False
        for one in answer.get("Errors", ()):
            if one.get("Code") not in _MISSING:
                failure = Failure(str(one.get("Code")), 0, str(one.get("Message")), None)
                raise meaning_of(failure, f"{self.address}: {self._keys.own(one.get('Key', ''))}")
        return True

    def _delete_one(self, full: str) -> None:
        try:
            self._bucket.ask("delete_object", self._keys.own(full), expected=_MISSING, Key=full)
        except Declined:
            return

    def _kept_with(self, one: Put) -> dict[str, Any]:
        """What is kept with an object: its time as rclone writes it, seconds with a fraction."""
        if one.mtime_ns is None:
            return self._every
        seconds, fraction = divmod(abs(one.mtime_ns), 10**9)
        text = f"{'-' if one.mtime_ns < 0 else ''}{seconds}.{fraction:09}".rstrip("0").rstrip(".")
        return {**self._every, "Metadata": {"mtime": text}}


def _read(one: Put, length: int, offset: int) -> bytes:
    data = one.content.read(length, offset)
    if len(data) != length:
        raise SourceChanged(f"{one.key} ended early while it was uploaded")
    return data


def _is_declined(write: _Write) -> bool:
    """Whether a server keeps what is there: the same is written again, which must not be taken."""
    try:
        write(_TAKEN, IfNoneMatch="*")
    except Declined:
        return True
    return False


def _is_encrypted(answer: Mapping[str, Any]) -> bool:
    """Whether the ETag is no MD5, since the server encrypts with a key of somebody's own."""
    return "SSECustomerAlgorithm" in answer or "kms" in str(answer.get("ServerSideEncryption", ""))
