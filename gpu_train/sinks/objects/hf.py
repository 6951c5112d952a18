"""Objects on the Hugging Face Hub: in a repository, or in a storage bucket.

A repository is git: it keeps every file that was ever committed, which counts against the account's storage, and wants
few commits and few files. It suits what is to stay, and what `from_pretrained` is to load. A bucket forgets what is
deleted and suits checkpoints that come and go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from gpu_train.errors import Refused
from gpu_train.sinks.objects.content import Content
from gpu_train.sinks.objects.hf_bucket import BucketFiles
from gpu_train.sinks.objects.hf_hub import Hub, Source
from gpu_train.sinks.objects.hf_repo import RepoFiles
from gpu_train.sinks.objects.key import Keys
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import NotFound, UsageError

_SCHEME = "hf://"
_KINDS = {"buckets": "bucket", "datasets": "dataset", "models": "model", "spaces": "space"}
_FORMS = "hf://OWNER/REPO[/PREFIX] or hf://buckets/OWNER/NAME[/PREFIX]"
_NEVER = {".git", ".cache"}
"""Parts of a path that the client refuses."""


class HfObjects:
    """See `ObjectStore`. Honours HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE as the client does."""

    def __init__(
        self, repo_id: str | None = None, bucket: str | None = None, *, repo_type: str = "model",
        revision: str = "main", private: bool | None = None, prefix: str = "", endpoint: str | None = None,
        credentials: Source | None = None,
    ) -> None:  # fmt: skip
        """Objects below `prefix` in a repository, or in a bucket; it is made with the first object.

        Args:
            repo_id: "owner/name".
            bucket: "owner/name".
            repo_type: "model", "dataset" or "space".
            revision: the branch.
            private: whether it is to be private when it is made; None as its owner's settings say.
            prefix: parts of a path that all keys are below.
            endpoint: the hub's address; by default HF_ENDPOINT, else huggingface.co.
            credentials: gives `token`, at each attempt anew; by default the client's own.

        Raises:
            UsageError: when not one of `repo_id` and `bucket` is given.
            Refused: for a bucket, when the client that is installed knows none.
        """
        if (repo_id is None) == (bucket is None):
            raise UsageError("hf: give either repo_id or bucket")
        kind = "buckets/" if bucket is not None else "" if repo_type == "model" else f"{repo_type}s/"
        self.address = f"{_SCHEME}{kind}{repo_id or bucket}/{prefix.strip('/')}".rstrip("/")
        self._keys = Keys(prefix, self.address)
        hub = Hub(self.address, endpoint, credentials)
        self._files: RepoFiles | BucketFiles
        if repo_id is not None:
            self._files = RepoFiles(hub, repo_id, repo_type, revision, private)
        else:
            assert bucket is not None
            self._files = BucketFiles(hub, bucket, private)

    @classmethod
    def at(
        cls, address: str, *, revision: str = "main", private: bool | None = None, endpoint: str | None = None,
        credentials: Source | None = None,
    ) -> Self:  # fmt: skip
        """Objects at `hf://owner/repo[/prefix]`, `hf://datasets/owner/repo[/prefix]` or
        `hf://buckets/owner/name[/prefix]`; what else is given is as above.

        Raises:
            UsageError: when it is no such address.
        """
        kind, names = "model", address.removeprefix(_SCHEME).rstrip("/").split("/")
        if names[0] in _KINDS:
            kind, names = _KINDS[names[0]], names[1:]
        if not address.startswith(_SCHEME) or len(names) < 2 or not all(names):
            raise UsageError(f"{address}: {_FORMS} is expected")
        place, prefix = "/".join(names[:2]), "/".join(names[2:])
        if kind == "bucket":
            return cls(bucket=place, private=private, prefix=prefix, endpoint=endpoint, credentials=credentials)
        return cls(
            place, repo_type=kind, revision=revision, private=private, prefix=prefix, endpoint=endpoint,
            credentials=credentials,
        )  # fmt: skip

    @property
    def few_files(self) -> bool:
        """See `ObjectStore`."""
        return self._files.few_files

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        self._files.put([one._replace(key=self._path(one.key)) for one in objects], on_bytes)

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        return self._files.size(self._path(key))

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`."""
        return self._files.holds(self._path(key), content)

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        if length:
            return self._files.read(self._path(key), length, offset)
        if self.size(key) is None:
            raise NotFound(f"{self.address}: there is no {key}")
        return b""

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        for found in self._files.found(self._keys.full_prefix(prefix)):
            yield found._replace(key=self._keys.own(found.key))

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        self._files.delete([self._path(key) for key in keys])

    def close(self) -> None:
        """See `ObjectStore`."""

    def _path(self, key: str) -> str:
        path = self._keys.full(key)
        if not _NEVER.isdisjoint(path.split("/")):
            raise Refused(
                f"{self.address}: {key!r} is no name for an object: the hub takes no {' or '.join(sorted(_NEVER))}"
            )
        return path
