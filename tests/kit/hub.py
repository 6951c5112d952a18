"""A small Hugging Face Hub on loopback: what the real client uses to keep files in repositories and buckets.

It speaks the Hub's endpoints (repositories, preupload, Git LFS in one part and in several, commits, paths, trees in
pages, files with ranges and redirects; buckets and xet tokens), keeps everything in memory, and misbehaves on demand.
What goes through xet lies in a folder, in the client's own local store; the hub reads it with the client's library.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MULTIPART_BYTES = 5 << 20
"""Larger LFS files are uploaded in parts of this size."""

REGULAR_BYTES = 10 << 20
"""Larger files are LFS files whatever they are called."""

PAGE = 50
"""Entries in a page of a tree."""

LFS_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".pack", ".npz", ".arrow")
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
WRITE, READ = "hf_write", "hf_read"
OWNER = "you"


def git_blob(data: bytes) -> str:
    """The name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A file in a commit: its bytes, or the sha256 of an LFS object."""

    data: bytes = b""
    lfs: str = ""
    size: int = 0

    @property
    def oid(self) -> str:
        return git_blob(self.pointer if self.lfs else self.data)

    @property
    def pointer(self) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (self.lfs.encode(), self.size)


@dataclass
class Repo:
    """A repository: branches by name, each a list of commits, and each of those all files by path."""

    private: bool = False
    gated: bool = False
    branches: dict[str, list[tuple[str, dict[str, Entry]]]] = field(default_factory=dict)

    def at(self, revision: str) -> tuple[str, dict[str, Entry]]:
        """The commit of a branch or of that name."""
        if revision in self.branches:
            return self.branches[revision][-1]
        for commits in self.branches.values():
            for sha, files in commits:
                if sha == revision:
                    return sha, files
        raise Problem(404, "Revision Not Found", "RevisionNotFound")


@dataclass
class Fault:
    """What happens instead of an answer, to the next `times` requests whose method and path match."""

    pattern: str
    status: int = 0
    times: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    kind: str = "status"


class Problem(Exception):
    """An answer that is an error, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # clients may go away
            super().handle_error(request, client_address)


class Hub:
    """The hub; `url` is its endpoint. Attributes may be looked at and changed at any time.

    Attributes:
        requests: method and path of every request, in order.
        faults: what is to go wrong; see `fail`.
        seen_authorization: of requests for stored objects, whether each carried a token.
    """

    def __init__(self, folder: Path) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.buckets: dict[str, dict[str, dict[str, Any]]] = {}
        self.lfs: dict[str, bytes] = {}
        self.xet: dict[str, str] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.seen_authorization: list[bool] = []
        self.before_commit: Callable[[], None] = lambda: None
        self.tokens = {WRITE, READ}
        self.lock = threading.RLock()
        self.ended = threading.Event()
        self.cas = folder / "cas"
        self._session: Any = None
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def storage_url(self) -> str:
        """Where objects lie: the same place under another name, as a CDN would be elsewhere."""
        return f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, pattern: str, status: int, times: int = 1, body: Any = None, **headers: str) -> None:
        """Answer the next requests matching `pattern` ("POST .*/commit/") with a status."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(pattern, status, times, named, body))

    def break_off(self, pattern: str, times: int = 1) -> None:
        """Close the connection in the middle of the answer."""
        self.faults.append(Fault(pattern, times=times, kind="break"))

    def drop(self, pattern: str, times: int = 1) -> None:
        """Do what was asked, and close the connection without an answer."""
        self.faults.append(Fault(pattern, times=times, kind="drop"))

    def hang(self, pattern: str, times: int = 1) -> None:
        """Give no answer as long as the hub runs."""
        self.faults.append(Fault(pattern, times=times, kind="hang"))

    def commits(self, repo: str = "you/ckpts") -> int:
        """How many commits were made to main after the repository was."""
        return len(self.repos["model", repo].branches["main"]) - 1

    def count(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(re.search(pattern, request) is not None for request in self.requests)

    def stored(self, entry: Entry) -> bytes:
        """The bytes of a file."""
        if not entry.lfs:
            return entry.data
        return self.lfs[entry.lfs] if entry.lfs in self.lfs else self.from_xet(self.xet[entry.lfs], entry.size)

    def from_xet(self, digest: str, size: int | None = None) -> bytes:
        """The bytes that were uploaded through xet."""
        import hf_xet

        self._session = self._session or hf_xet.XetSession()
        group = self._session.new_download_stream_group(endpoint=f"local://{self.cas}")
        return b"".join(group.download_stream(hf_xet.XetFileInfo(digest, size)))

    def fault_for(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if re.search(fault.pattern, request):
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                    return fault
        return None


@contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """A hub that is there for the time of the block."""
    with Hub(folder) as hub:
        yield hub


Answer = tuple[int, Mapping[str, str], bytes]


def _json(value: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return status, {"Content-Type": "application/json", **named}, json.dumps(value).encode()


class _Request:
    """One request to the hub, and the answers to it; each method is for one kind of address."""

    def __init__(self, hub: Hub, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        self.hub = hub
        self.method = method
        parts = urlsplit(target)
        self.path = parts.path
        self.query = parse_qs(parts.query)
        self.headers = headers
        self.body = body
        authorization = headers.get("authorization", "")
        self.token = authorization.removeprefix("Bearer ") if authorization.startswith("Bearer ") else ""

    def answer(self) -> Answer:
        for pattern, name in _ROUTES:
            method, _, path = pattern.partition(" ")
            if method not in ("ANY", self.method) and not (method == "GET" and self.method == "HEAD"):
                continue
            if found := re.fullmatch(path, self.path):
                with self.hub.lock:
                    return getattr(self, name)(*(unquote(text or "") for text in found.groups()))
        raise Problem(404, f"no such address: {self.method} {self.path}")

    def need(self, *, write: bool = False) -> None:
        if self.token and self.token not in self.hub.tokens:
            raise Problem(401, "Invalid credentials in Authorization header")
        if write and not self.token:
            raise Problem(401, "Invalid username or password.")
        if write and self.token != WRITE:
            raise Problem(403, "you need write rights to do that")

    def repo(self, kind: str, name: str, *, write: bool = False) -> Repo:
        self.need()
        repo = self.hub.repos.get((kind.removesuffix("s"), name))
        if repo is None or (repo.private and not self.token):
            # As the Hub does: who may not know of a repository does not learn that it is there.
            raise Problem(404 if self.token else 401, "Repository Not Found", "RepoNotFound")
        if repo.gated:
            raise Problem(403, "Access to this model is restricted", "GatedRepo")
        self.need(write=write)
        return repo

    def create(self) -> Answer:
        self.need(write=True)
        asked = json.loads(self.body)
        kind, name = asked.get("type") or "model", f"{asked.get('organization') or OWNER}/{asked['name']}"
        if (kind, name) in self.hub.repos:
            return _json({"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, 409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        first = (secrets.token_hex(20), {".gitattributes": Entry(GITATTRIBUTES, size=len(GITATTRIBUTES))})
        self.hub.repos[kind, name] = Repo(private, branches={"main": [first]})
        prefix = "" if kind == "model" else f"{kind}s/"
        return _json({"url": f"{self.hub.url}/{prefix}{name}", "name": name, "id": name})

    def info(self, kind: str, name: str, revision: str) -> Answer:
        sha, files = self.repo(kind, name).at(revision or "main")
        return _json(
            {"_id": "0", "id": name, "sha": sha, "private": self.repo(kind, name).private, "tags": [], "downloads": 0,
             "siblings": [{"rfilename": path} for path in files]}
        )  # fmt: skip

    def branch(self, kind: str, name: str, branch: str) -> Answer:
        repo = self.repo(kind, name, write=True)
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        if branch in repo.branches:
            raise Problem(409, "Reference already exists")
        repo.branches[branch] = [repo.at(start)]
        return _json({}, 201)

    def preupload(self, kind: str, name: str, revision: str) -> Answer:
        _, files = self.repo(kind, name, write=True).at(revision)
        answers = []
        for file in json.loads(self.body)["files"]:
            path, sample = file["path"], base64.b64decode(file["sample"])
            large = file["size"] > REGULAR_BYTES or path.endswith(LFS_ENDINGS) or b"\0" in sample
            there = files.get(path)
            answers.append(
                {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": path.endswith(".ignored"),
                 "oid": None if there is None else there.lfs or there.oid}
            )  # fmt: skip
        return _json({"files": answers})

    def batch(self, kind: str, name: str) -> Answer:
        self.repo(kind or "model", name, write=True)
        objects = []
        for one in json.loads(self.body)["objects"]:
            oid, size = one["oid"], one["size"]
            found: dict[str, Any] = {"oid": oid, "size": size}
            if oid not in self.hub.lfs and oid not in self.hub.xet:
                upload: dict[str, Any] = {"href": f"{self.hub.storage_url}/lfs/{oid}"}
                if size > MULTIPART_BYTES:
                    numbers = range(1, -(-size // MULTIPART_BYTES) + 1)
                    self.hub.parts[oid] = {}
                    upload["href"] = f"{self.hub.url}/lfs-complete/{oid}"
                    upload["header"] = {"chunk_size": str(MULTIPART_BYTES)} | {
                        f"{n:05}": f"{self.hub.storage_url}/lfs-part/{oid}/{n}" for n in numbers
                    }
                found["actions"] = {"upload": upload, "verify": {"href": f"{self.hub.url}/lfs-verify"}}
            objects.append(found)
        return _json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> Answer:
        self.hub.seen_authorization.append(bool(self.token))
        self._keep(oid, self.body)
        return _json({}, ETag='"x"')

    def lfs_part(self, oid: str, number: str) -> Answer:
        self.hub.seen_authorization.append(bool(self.token))
        self.hub.parts[oid][int(number)] = self.body
        return _json({}, ETag=f'"{hashlib.md5(self.body).hexdigest()}"')

    def lfs_complete(self, oid: str) -> Answer:
        parts = self.hub.parts.pop(oid)
        for part in json.loads(self.body)["parts"]:
            if part["etag"] != f'"{hashlib.md5(parts[part["partNumber"]]).hexdigest()}"':
                raise Problem(400, "a part is not what was sent")
        self._keep(oid, b"".join(parts[number] for number in sorted(parts)))
        return _json({})

    def lfs_verify(self) -> Answer:
        asked = json.loads(self.body)
        if len(self.hub.lfs.get(asked["oid"], b"")) != asked["size"]:
            raise Problem(404, "the object is not there")
        return _json({})

    def _keep(self, oid: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != oid:
            raise Problem(400, "the object is not what its name says")
        self.hub.lfs[oid] = data

    def commit(self, kind: str, name: str, revision: str) -> Answer:
        repo = self.repo(kind, name, write=True)
        lines = [json.loads(line) for line in self.body.splitlines()]
        self.hub.before_commit()
        sha, files = repo.at(revision)
        if lines[0]["value"].get("parentCommit", sha) != sha:
            raise Problem(412, "A commit has happened since. Please refresh and try again.")
        files = dict(files)
        for line in lines[1:]:
            self._apply(line["key"], line["value"], files)
        if any(f"{parent}/" == path[: len(parent) + 1] for parent in files for path in files):
            raise Problem(400, "a file cannot be a folder")
        sha = secrets.token_hex(20)
        repo.branches[revision].append((sha, files))
        return _json({"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha})

    def _apply(self, key: str, value: dict[str, Any], files: dict[str, Entry]) -> None:
        path = value["path"]
        if key == "file":
            data = base64.b64decode(value["content"])
            if len(data) > REGULAR_BYTES:
                raise Problem(400, "your file is too large, use LFS")
            files[path] = Entry(data, size=len(data))
        elif key == "lfsFile":
            oid, size = value["oid"], value["size"]
            if oid not in self.hub.lfs and not self._through_xet(oid):
                raise Problem(400, "LFS pointer pointed to a file that does not exist")
            files[path] = Entry(lfs=oid, size=size)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Problem(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        else:
            raise Problem(400, f"unknown operation {key}")

    def _through_xet(self, oid: str) -> bool:
        """Whether a file of that sha256 came through xet: its shard names that beside the file's own hash."""
        words = bytes.fromhex(oid)
        for shard in self._shards():
            for wanted in (words, b"".join(words[at : at + 8][::-1] for at in range(0, 32, 8))):
                if (at := shard.find(wanted)) >= 0:
                    self.hub.xet[oid] = _file_of_shard(shard, at)
                    return True
        return False

    def _shards(self) -> Iterator[bytes]:
        for folder, _, names in os.walk(self.hub.cas):  # uploads make and remove files meanwhile
            for name in names:
                if name.endswith(".mdb"):
                    with suppress(FileNotFoundError):
                        yield Path(folder, name).read_bytes()

    def paths_info(self, kind: str, name: str, revision: str) -> Answer:
        _, files = self.repo(kind, name).at(revision)
        asked = parse_qs(self.body.decode(), keep_blank_values=True)["paths"]
        return _json([_described(path, files) for path in asked if _described(path, files)])

    def tree(self, kind: str, name: str, revision: str, folder: str) -> Answer:
        _, files = self.repo(kind, name).at(revision)
        start = f"{folder}/" if folder else ""
        paths: list[str] = []
        for path in files:
            if path.startswith(start):
                below = path[len(start) :].split("/")
                paths += [start + "/".join(below[:depth]) for depth in range(1, len(below) + 1)]
        if not paths:
            raise Problem(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            paths = [path for path in paths if "/" not in path[len(start) :]]
        return self._page([_described(path, files) for path in dict.fromkeys(sorted(paths))])

    def _page(self, entries: list[Any]) -> Answer:
        at = int(self.query.get("cursor", ["0"])[0])
        if at + PAGE >= len(entries):
            return _json(entries[at:])
        recursive = self.query.get("recursive", ["false"])[0]
        following = f"{self.hub.url}{self.path}?recursive={recursive}&cursor={at + PAGE}"
        return _json(entries[at : at + PAGE], Link=f'<{following}>; rel="next"')

    def resolve(self, kind: str, name: str, revision: str, path: str) -> Answer:
        sha, files = self.repo(kind or "model", name).at(revision)
        if path not in files:
            raise Problem(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": sha})
        entry = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{entry.oid}"', "Accept-Ranges": "bytes"}
        if not entry.lfs:
            return self._ranged(entry.data, headers)
        headers |= {"X-Linked-Size": str(entry.size), "X-Linked-ETag": f'"{entry.lfs}"'}
        return 302, {**headers, "Location": f"{self.hub.storage_url}/cdn/{entry.lfs}/{entry.size}"}, b""

    def cdn(self, oid: str, size: str) -> Answer:
        self.hub.seen_authorization.append(bool(self.token))
        data = self.hub.stored(Entry(lfs=oid, size=int(size)))
        return self._ranged(data, {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def _ranged(self, data: bytes, headers: Mapping[str, str]) -> Answer:
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")):
            first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
            if first >= len(data):
                return 416, {**headers, "Content-Range": f"bytes */{len(data)}"}, b""
            part = data[first : last + 1]
            return 206, {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, part
        return 200, headers, data

    def validate(self) -> Answer:
        return _json({"errors": [], "warnings": []})

    def whoami(self) -> Answer:
        if self.token not in self.hub.tokens:
            raise Problem(401, "Invalid credentials in Authorization header")
        return _json({"type": "user", "name": OWNER, "orgs": []})

    def xet_token(self, *_: str) -> Answer:
        self.need(write="write-token" in self.path)
        until = int(time.time()) + 3600
        return _json(
            {"casUrl": f"local://{self.hub.cas}", "accessToken": "xet", "exp": until},
            X_Xet_Cas_Url=f"local://{self.hub.cas}", X_Xet_Access_Token="xet", X_Xet_Token_Expiration=str(until),
        )  # fmt: skip

    def bucket(self, name: str, *, write: bool = False) -> dict[str, dict[str, Any]]:
        self.need(write=write)
        if name not in self.hub.buckets:
            raise Problem(404, "Bucket not found", "RepoNotFound")
        return self.hub.buckets[name]

    def bucket_create(self, name: str) -> Answer:
        self.need(write=True)
        if name in self.hub.buckets:
            return _json({"error": "this bucket exists", "url": f"{self.hub.url}/buckets/{name}"}, 409)
        self.hub.buckets[name] = {}
        return _json({"url": f"{self.hub.url}/buckets/{name}", "name": name})

    def bucket_info(self, name: str) -> Answer:
        files = self.bucket(name)
        size = sum(file["size"] for file in files.values())
        return _json(
            {"id": name, "private": True, "createdAt": "2026-03-01T00:00:00.000Z", "size": size,
             "totalFiles": len(files)}
        )  # fmt: skip

    def bucket_batch(self, name: str) -> Answer:
        files = self.bucket(name, write=True)
        failed = []
        for line in self.body.splitlines():
            asked = json.loads(line)
            path = asked["path"]
            if asked["type"] == "addFile":
                size = len(self.hub.from_xet(asked["xetHash"]))
                files[path] = {
                    "type": "file", "path": path, "size": size, "xetHash": asked["xetHash"], "mtimeMs": asked["mtime"],
                }  # fmt: skip
            elif asked["type"] == "deleteFile" and files.pop(path, None) is None:
                failed.append({"path": path, "error": "no such file"})
        return _json({"failed": failed}, 422 if failed else 200)

    def bucket_paths(self, name: str) -> Answer:
        files = self.bucket(name)
        return _json([files[path] for path in json.loads(self.body)["paths"] if path in files])

    def bucket_tree(self, name: str, prefix: str) -> Answer:
        files = self.bucket(name)
        return self._page([files[path] for path in sorted(files) if path.startswith(prefix)])

    def bucket_resolve(self, name: str, path: str) -> Answer:
        files = self.bucket(name)
        if path not in files:
            raise Problem(404, "Entry not found", "EntryNotFound")
        return self._ranged(self.hub.from_xet(files[path]["xetHash"], files[path]["size"]), {})


def _described(path: str, files: Mapping[str, Entry]) -> dict[str, Any] | None:
    if path in files:
        entry = files[path]
        found: dict[str, Any] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
        if entry.lfs:
            found["lfs"] = {"oid": entry.lfs, "size": entry.size, "pointerSize": len(entry.pointer)}
        return found
    if any(other.startswith(f"{path}/") for other in files):
        return {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0}
    return None


def _file_of_shard(data: bytes, at: int) -> str:
    """The hash of the file whose sha256 is at a place of a shard: in the first of its records, 48 bytes each."""
    record = at - 48
    while int.from_bytes(data[record + 32 : record + 36], "little") & 0x40000000 == 0:
        record -= 48
    words = data[record : record + 32]
    return b"".join(words[at : at + 8][::-1] for at in range(0, 32, 8)).hex()


_REPO = r"(models|datasets|spaces)/([^/]+/[^/]+)"
_RESOLVE = r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)"
_BUCKET = r"/api/buckets/([^/]+/[^/]+)"
_ROUTES = [
    ("POST /api/repos/create", "create"),
    ("POST /api/validate-yaml", "validate"),
    ("GET /api/whoami-v2", "whoami"),
    (rf"GET /api/{_REPO}/xet-(?:read|write)-token/(.+)", "xet_token"),
    (rf"GET {_BUCKET}/xet-(?:read|write)-token", "xet_token"),
    (rf"POST {_BUCKET}/batch", "bucket_batch"),
    (rf"POST {_BUCKET}/paths-info", "bucket_paths"),
    (rf"GET {_BUCKET}/tree(?:/(.*))?", "bucket_tree"),
    (rf"POST {_BUCKET}", "bucket_create"),
    (rf"GET {_BUCKET}", "bucket_info"),
    (r"GET /buckets/([^/]+/[^/]+)/resolve/(.+)", "bucket_resolve"),
    (rf"POST /api/{_REPO}/preupload/(.+)", "preupload"),
    (rf"POST /api/{_REPO}/commit/(.+)", "commit"),
    (rf"POST /api/{_REPO}/paths-info/(.+)", "paths_info"),
    (rf"POST /api/{_REPO}/branch/(.+)", "branch"),
    (rf"GET /api/{_REPO}/tree/([^/]+)(?:/(.*))?", "tree"),
    (rf"GET /api/{_REPO}(?:/revision/(.+))?", "info"),
    (rf"POST {_RESOLVE}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT /lfs/(\w+)", "lfs_put"),
    (r"PUT /lfs-part/(\w+)/(\d+)", "lfs_part"),
    (r"POST /lfs-complete/(\w+)", "lfs_complete"),
    (r"POST /lfs-verify", "lfs_verify"),
    (r"GET /cdn/(\w+)/(\d+)", "cdn"),
    (rf"GET {_RESOLVE}/resolve/([^/]+)/(.+)", "resolve"),
]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self._body()
            request = f"{self.command} {urlsplit(self.path).path}"
            hub.requests.append(request)
            fault = hub.fault_for(request)
            if fault is not None and fault.kind == "hang":
                hub.ended.wait()
                self.close_connection = True
                return
            if fault is not None and fault.kind == "status":
                self._send(*_json(fault.body or {"error": "as was asked for"}, fault.status), fault.headers)
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, given, data = _Request(hub, self.command, self.path, headers, body).answer()
            except Problem as e:
                status, given, data = _json({"error": str(e)}, e.status, X_Error_Message=str(e))
                given = {**given, **e.headers, **({"X-Error-Code": e.code} if e.code else {})}
            if fault is not None and fault.kind == "drop":
                self.close_connection = True
                return
            self._send(status, given, data, cut=fault is not None)

        def _send(
            self, status: int, headers: Mapping[str, str], data: bytes, more: Mapping[str, str] = {}, cut: bool = False
        ) -> None:  # fmt: skip
            self.send_response(status)
            for name, value in {**headers, **more}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    return Handler
