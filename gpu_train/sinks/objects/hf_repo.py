"""Files in a repository of the Hub: few commits, each proven by what the Hub says of its files afterwards."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from gpu_train.errors import Corrupted, Refused, Taken, Unavailable
from gpu_train.sinks.objects.content import Content, FileContent, parts
from gpu_train.sinks.objects.content_file import ContentFile
from gpu_train.sinks.objects.hf_hub import Hub, has_xet, status_of
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import NotFound

COMMIT_FILES = 90
"""How many files a commit gets at most; the Hub recommends less than 100."""

COMMIT_BYTES = 64 << 20
"""How much of a commit may be held in memory: the Hub takes small files within it."""

SMALL_BYTES = 1 << 20
"""What is no larger is read into memory once, and sent from there."""

_ASKED = 500
_CONFLICTS = 10
_THREADS = 4
_OWN = ".gitattributes"
"""The Hub's own file in each repository; it is none of ours."""


class _Add(NamedTuple):
    """One object on its way: what is to be written, and the client's operation."""

    put: Put
    operation: CommitOperationAdd

    @property
    def source(self) -> object:
        """Where the client reads the bytes."""
        return self.operation.path_or_fileobj


class RepoFiles:
    """Files by their paths in one branch of a repository. Its methods are those of `ObjectStore`, by path."""

    few_files = True

    def __init__(self, hub: Hub, repo_id: str, repo_type: str, revision: str, private: bool | None) -> None:
        self._hub = hub
        self._repo_id = repo_id
        self._repo_type = repo_type
        self._revision = revision
        self._private = private

    def put(self, objects: Sequence[Put], on_bytes: OnBytes) -> None:
        """See `ObjectStore`."""
        for batch in _batches(objects):
            head = self._head_to_write()
            left = self._left(batch, head)
            if left:
                adds = self._uploaded(left, on_bytes)
                if committed := self._committed(adds, head):
                    self._check(*committed)

    def size(self, path: str) -> int | None:
        """See `ObjectStore`."""
        file = self._files([path]).get(path)
        return None if file is None else file.size

    def holds(self, path: str, content: Content) -> bool:
        """See `ObjectStore`."""
        file = self._files([path]).get(path)
        return file is not None and _is(file, content)

    def read(self, path: str, length: int, offset: int) -> bytes:
        """See `ObjectStore`."""
        with self._hub.calls(path) as api:
            url = hf_hub_url(
                self._repo_id, path, repo_type=self._repo_type, revision=self._revision, endpoint=api.endpoint
            )
        return self._hub.read(url, path, length, offset)

    def found(self, prefix: str) -> Iterator[Found]:
        """See `ObjectStore`."""
        folder = prefix.rpartition("/")[0] or None
        try:
            for file in self._hub.each(
                lambda api: api.list_repo_tree(
                    self._repo_id, folder, recursive=True, revision=self._revision, repo_type=self._repo_type
                )
            ):
                if isinstance(file, RepoFile) and file.path.startswith(prefix) and file.path != _OWN:
                    yield Found(file.path, file.size)
        except NotFound:  # the repository, the branch or the folder
            return

    def delete(self, paths: Sequence[str]) -> None:
        """See `ObjectStore`."""
        for at in range(0, len(paths), _ASKED):
            there = list(self._files(paths[at : at + _ASKED]))
            if there:
                deletes = [CommitOperationDelete(path, is_folder=False) for path in there]
                with self._hub.calls(there[0]) as api:
                    api.create_commit(
                        self._repo_id, deletes, commit_message=f"Remove {_counted(there)}", revision=self._revision,
                        repo_type=self._repo_type,
                    )  # fmt: skip

    def _head_to_write(self) -> str:
        """The branch's last commit; the repository and the branch are made when they are not there."""
        for made in (False, True):
            with self._hub.calls() as api:
                try:
                    return str(api.repo_info(self._repo_id, repo_type=self._repo_type, revision=self._revision).sha)
                except (RepositoryNotFoundError, RevisionNotFoundError) as e:
                    if made or status_of(e) in (401, 403):
                        raise
                    self._make(api, repo=isinstance(e, RepositoryNotFoundError))
        raise AssertionError("the second round returns or raises")

    def _make(self, api: HfApi, *, repo: bool) -> None:
        if repo:
            api.create_repo(self._repo_id, repo_type=self._repo_type, private=self._private, exist_ok=True)
        if self._revision != "main":
            api.create_branch(self._repo_id, branch=self._revision, repo_type=self._repo_type, exist_ok=True)

    def _files(self, paths: Sequence[str], revision: str | None = None) -> dict[str, RepoFile]:
        """The files that there are of some paths."""
        found: dict[str, RepoFile] = {}
        for at in range(0, len(paths), _ASKED):
            asked = list(paths[at : at + _ASKED])
            with self._hub.calls(asked[0]) as api:
                try:
                    infos = api.get_paths_info(
                        self._repo_id, asked, revision=revision or self._revision, repo_type=self._repo_type
                    )
                except (RepositoryNotFoundError, RevisionNotFoundError) as e:
                    if status_of(e) == 401:
                        raise
                    return {}
            found.update((file.path, file) for file in infos if isinstance(file, RepoFile))
        return found

    def _left(self, batch: Sequence[Put], head: str) -> list[Put]:
        """Those of a batch that are not there yet, as of a commit.

        Raises:
            Taken: when one that is to be new is there with other bytes.
        """
        asked = [one.key for one in batch if one.again or one.only_new]
        there = self._files(asked, head) if asked else {}
        left = []
        for one in batch:
            file = there.get(one.key)
            if file is None or not _is(file, one.content):
                if file is not None and one.only_new:
                    raise Taken(f"{self._hub.address}: {one.key} is there already with other bytes")
                left.append(one)
        return left

    def _uploaded(self, batch: Sequence[Put], on_bytes: OnBytes) -> list[_Add]:
        """Send the bytes; the files are there with the commit."""
        together = [one for one in batch if _can_go_through_xet(one.content)] if has_xet() else []
        groups = [[one] for one in batch if one not in together] + ([together] if together else [])
        with ThreadPoolExecutor(min(_THREADS, len(groups)), thread_name_prefix="hf") as pool:
            tasks = [pool.submit(self._upload, group, on_bytes) for group in groups]
            try:
                return [add for task in tasks for add in task.result()]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _upload(self, group: Sequence[Put], on_bytes: OnBytes) -> list[_Add]:
        """Send some in one call of the client.

        Only what goes through xet goes together: for several others it starts threads, not known to be ours.
        """
        with self._hub.calls(group[0].key) as api:
            adds = [_Add(one, self._operation(one, on_bytes)) for one in group]
            api.preupload_lfs_files(
                self._repo_id, [add.operation for add in adds], repo_type=self._repo_type, revision=self._revision,
                free_memory=False,
            )  # fmt: skip
            on_bytes(sum(add.put.content.size_bytes for add in adds if not isinstance(add.source, ContentFile)))
            return adds

    def _operation(self, one: Put, on_bytes: OnBytes) -> CommitOperationAdd:
        if one.content.size_bytes <= SMALL_BYTES:
            return CommitOperationAdd(one.key, b"".join(parts(one.content)))
        if isinstance(one.content, FileContent) and has_xet():
            return CommitOperationAdd(one.key, one.content.path)
        file = ContentFile(one.content)
        operation = CommitOperationAdd(one.key, file)  # which reads it, for its checksum
        file.tell_of(on_bytes)
        return operation

    def _committed(self, adds: Sequence[_Add], head: str) -> tuple[Sequence[_Add], str] | None:
        """Commit what was uploaded; which of it, and the commit. None when others had put the same there meanwhile.

        Raises:
            Taken: see `_left`.
        """
        for _ in range(_CONFLICTS):
            # Only what must be new needs to know that nothing has happened since it was looked for.
            parent = head if any(add.put.only_new for add in adds) else None
            names = [add.put.key for add in adds]
            with self._hub.calls(names[0]) as api:
                try:
                    made = api.create_commit(
                        self._repo_id, [add.operation for add in adds], commit_message=f"Add {_counted(names)}",
                        revision=self._revision, repo_type=self._repo_type, parent_commit=parent,
                    )  # fmt: skip
                    return adds, str(made.oid)
                except HfHubHTTPError as e:
                    if status_of(e) not in (409, 412):
                        raise
            time.sleep(random.uniform(0.02, 0.2))
            head = self._head_to_write()
            left = {one.key for one in self._left([add.put for add in adds], head)}
            adds = [add for add in adds if add.put.key in left]
            if not adds:
                return None
        raise Unavailable(f"{self._hub.address}: others commit to {self._revision} all the time; try again")

    def _check(self, adds: Sequence[_Add], commit: str) -> None:
        """Compare what the Hub says of the files with what was sent."""
        there = self._files([add.put.key for add in adds], commit)
        for put, operation in adds:
            file = there.get(put.key)
            if file is None:
                what = f"{self._hub.address}: {put.key} is not there after it was committed"
                raise Refused(f"{what}; does a .gitignore there name it?")
            if file.lfs is not None:
                same = file.lfs.sha256 == operation.upload_info.sha256.hex() and file.size == put.content.size_bytes
            else:
                same = _is(file, put.content)
            if not same:
                raise Corrupted(f"{self._hub.address}: the hub holds other bytes of {put.key} than were sent")


def _batches(objects: Sequence[Put]) -> Iterator[list[Put]]:
    """Objects as they go into commits, one after the other; of a path that occurs twice the later one stays."""
    batch: dict[str, Put] = {}
    size = 0
    for one in objects:
        held = min(one.content.size_bytes, SMALL_BYTES)
        if batch and (len(batch) == COMMIT_FILES or size + held > COMMIT_BYTES or one.key in batch):
            yield list(batch.values())
            batch, size = {}, 0
        batch[one.key] = one
        size += held
    if batch:
        yield list(batch.values())


def _can_go_through_xet(content: Content) -> bool:
    return content.size_bytes <= SMALL_BYTES or isinstance(content, FileContent)


def _is(file: RepoFile, content: Content) -> bool:
    """Whether a file of the Hub has these bytes, by what the Hub says of it."""
    if file.size != content.size_bytes:
        return False
    hashed = hashlib.sha256() if file.lfs is not None else hashlib.sha1(b"blob %d\0" % content.size_bytes)
    for part in parts(content):
        hashed.update(part)
    return hashed.hexdigest() == (file.blob_id if file.lfs is None else file.lfs.sha256)


def _counted(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
