"""Files in a storage bucket of the Hub. Their bytes go through xet, which sends what its storage does not have yet.

The client's own way of adding files to a bucket wants each as a path or whole in memory. So bytes are streamed with
the library below it, hf_xet, and the bucket is told of them as the client would.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]  # see hf_hub

from gpu_train.errors import Corrupted, Refused, Taken
from gpu_train.sinks.objects.content import PART_BYTES, Content, FileContent, parts
from gpu_train.sinks.objects.hf_hub import Hub, headers_of
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import NotFound

if TYPE_CHECKING:
    from huggingface_hub import BucketFile

_TOGETHER = 500
_THREADS = 3

_PIECE_BYTES = 256 << 10
"""How much hf_xet is given at a time. It keeps all of a piece as long as it keeps a part of it for sending, so that of
contents that are mostly there already it would hold everything, were they given in large pieces."""


class _Stored(NamedTuple):
    """An object whose bytes are in the Hub's storage, and the name they have there."""

    put: Put
    digest: str


class BucketFiles:
    """Files by their paths in one bucket. Its methods are those of `ObjectStore`, by path."""

    few_files = False

    def __init__(self, hub: Hub, bucket: str, private: bool | None) -> None:
        """Raises Refused when the client that is installed knows no buckets."""
        _check_client(hub.address)
        self._hub = hub
        self._bucket = bucket
        self._private = private
        self._lock = threading.Lock()
        self._session: Any = None

    def put(self, objects: Sequence[Put], on_bytes: OnBytes) -> None:
        """See `ObjectStore`."""
        latest = {one.key: one for one in objects}
        for batch in _groups(list(latest.values())):
            self._make()
            there = self._files([one.key for one in batch if one.again or one.only_new])
            new = [one for one in self._stored(batch, there, on_bytes) if self._is_new(one, there)]
            if new:
                self._add(new)
                self._check(new)

    def size(self, path: str) -> int | None:
        """See `ObjectStore`."""
        file = self._files([path]).get(path)
        return None if file is None else file.size

    def holds(self, path: str, content: Content) -> bool:
        """See `ObjectStore`. What is no file of its own is compared with what is fetched: xet names files only."""
        file = self._files([path]).get(path)
        if file is None or file.size != content.size_bytes:
            return False
        if isinstance(content, FileContent):
            import hf_xet  # noqa: PLC0415

            return bool(hf_xet.hash_files([str(content.path)])[0].hash == file.xet_hash)
        return all(
            self.read(path, PART_BYTES, offset) == content.read(PART_BYTES, offset)
            for offset in range(0, file.size, PART_BYTES)
        )

    def read(self, path: str, length: int, offset: int) -> bytes:
        """See `ObjectStore`."""
        with self._hub.calls(path) as api:
            url = f"{api.endpoint}/buckets/{self._bucket}/resolve/{quote(path)}"
        return self._hub.read(url, path, length, offset)

    def found(self, prefix: str) -> Iterator[Found]:
        """See `ObjectStore`."""
        folder = prefix.rpartition("/")[0] or None
        try:
            for file in self._hub.each(lambda api: api.list_bucket_tree(self._bucket, folder, recursive=True)):
                if file.type == "file" and file.path.startswith(prefix):
                    yield Found(file.path, file.size)
        except NotFound:
            return

    def delete(self, paths: Sequence[str]) -> None:
        """See `ObjectStore`."""
        for group in _groups(list(dict.fromkeys(paths))):
            there = list(self._files(group))
            if there:
                with self._hub.calls(there[0]) as api:
                    api.batch_bucket_files(self._bucket, delete=there)

    def _make(self) -> None:
        with self._hub.calls() as api:
            try:
                api.bucket_info(self._bucket)
            except HfHubHTTPError as e:
                if e.response.status_code != 404:
                    raise
                api.create_bucket(self._bucket, private=self._private, exist_ok=True)

    def _files(self, paths: Sequence[str]) -> dict[str, BucketFile]:
        """The files that there are of some paths."""
        if not paths:
            return {}
        with self._hub.calls(paths[0]) as api:
            try:
                return {file.path: file for file in api.get_bucket_paths_info(self._bucket, paths)}
            except HfHubHTTPError as e:
                if e.response.status_code != 404:
                    raise
                return {}

    def _is_new(self, one: _Stored, there: dict[str, BucketFile]) -> bool:
        file = there.get(one.put.key)
        if file is None or file.xet_hash != one.digest:
            if file is not None and one.put.only_new:
                raise self._taken(one.put.key)
            return True
        return False

    def _stored(self, batch: Sequence[Put], there: dict[str, BucketFile], on_bytes: OnBytes) -> list[_Stored]:
        """Bring the bytes into the Hub's storage; what is there already is recognized and not sent.

        They are counted unless an object of that size is there: then most likely nothing is sent.
        """
        with self._hub.calls(batch[0].key) as api:
            upload = self._upload(api)

            def store(one: Put) -> _Stored:
                file = there.get(one.key)
                silent = file is not None and file.size == one.content.size_bytes
                return _Stored(one, _sent(upload, one, _nobody if silent else on_bytes))

            with upload, ThreadPoolExecutor(min(_THREADS, len(batch)), thread_name_prefix="hf") as pool:
                return list(pool.map(store, batch))

    def _upload(self, api: HfApi) -> Any:
        """An upload to the storage, which asks for new tokens by itself; the first one we ask for, in our own words."""
        headers = headers_of(api)
        url = f"{api.endpoint}/api/buckets/{self._bucket}/xet-write-token"
        response = get_session().get(url, headers=headers)
        hf_raise_for_status(response)
        given = response.json()
        return self._xet().new_upload_commit(
            endpoint=given["casUrl"], token=given["accessToken"], token_expiry_unix_secs=given["exp"],
            token_refresh_url=url, token_refresh_headers=headers,
            custom_headers={name: text for name, text in headers.items() if name.lower() != "authorization"},
        )  # fmt: skip

    def _add(self, new: Sequence[_Stored]) -> None:
        """Let the bucket know of files whose bytes are in the storage."""
        lines = [
            {
                "type": "addFile",
                "path": one.put.key,
                "xetHash": one.digest,
                "mtime": (one.put.mtime_ns or time.time_ns()) // 1_000_000,
            }
            for one in new
        ]
        with self._hub.calls(new[0].put.key) as api:
            headers = headers_of(api)
            response = get_session().post(
                f"{api.endpoint}/api/buckets/{self._bucket}/batch",
                headers={**headers, "content-type": "application/x-ndjson"},
                content=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
            )
            if response.status_code in (200, 422) and (failed := response.json().get("failed")):
                first = failed[0]
                raise Refused(f"{self._hub.address}: {first.get('path')} was not added: {first.get('error')}")
            hf_raise_for_status(response)

    def _check(self, new: Sequence[_Stored]) -> None:
        """Compare what the bucket says of the files with what was sent."""
        there = self._files([one.put.key for one in new])
        for one in new:
            file = there.get(one.put.key)
            if file is None or file.xet_hash != one.digest or file.size != one.put.content.size_bytes:
                if file is not None and one.put.only_new:  # somebody else was there a moment later
                    raise self._taken(one.put.key)
                raise Corrupted(f"{self._hub.address}: the bucket holds other bytes of {one.put.key} than were sent")

    def _taken(self, path: str) -> Taken:
        return Taken(f"{self._hub.address}: {path} is there already with other bytes")

    def _xet(self) -> Any:
        """The session of hf_xet: threads share it."""
        import hf_xet  # noqa: PLC0415

        with self._lock:
            if self._session is None:
                self._session = hf_xet.XetSession()
            return self._session


def _check_client(address: str) -> None:
    try:
        import hf_xet  # noqa: PLC0415  there is none for some machines, and repositories do without

        fits = hasattr(hf_xet, "XetSession") and hasattr(HfApi, "batch_bucket_files")
    except ImportError:
        fits = False
    if not fits:
        raise Refused(
            f"{address}: buckets need huggingface_hub 1.5 and hf_xet 1.5; `pip install -U huggingface_hub hf_xet`"
        )


def _sent(upload: Any, one: Put, on_bytes: OnBytes) -> str:
    """Send one content through xet; its name there."""
    import hf_xet  # noqa: PLC0415

    stream = upload.start_upload_stream(sha256=hf_xet.SKIP_SHA256)
    try:
        for part in parts(one.content):
            for at in range(0, len(part), _PIECE_BYTES):
                stream.write(part[at : at + _PIECE_BYTES])
            on_bytes(len(part))
        return str(stream.finish().xet_info.hash)
    except BaseException:
        stream.abort()
        raise


def _nobody(_: int) -> None:
    """Is told of bytes that are not to be counted."""


def _groups(items: Sequence[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(items), _TOGETHER):
        yield list(items[at : at + _TOGETHER])
