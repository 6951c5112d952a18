"""One Hugging Face Hub through its own client: whose token, how long to wait, and its errors in our words.

The client answers 429 and 5xx by sleeping, as long as the server likes, its requests have no timeouts, and it logs
addresses with signatures in them. For our calls alone that is taken from it: the hooks on its session and the filter of
its logs, which other users of the library in this process share, see what is ours by a variable of the context.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # they are documented, and given on first use
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    get_session,
    hf_raise_for_status,
)

from gpu_train.errors import Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.retry_after import seconds_of
from gpu_train_cas.errors import GpuTrainError, NotFound

Source = Callable[[], Mapping[str, str]]
"""Gives credentials as they are now: `token`, or nothing for the client's own (HF_TOKEN, `hf auth login`)."""

TIMEOUT_S = {"connect": 20.0, "read": 180.0, "write": 60.0, "pool": 60.0}
"""How long a request may stand still; a large commit takes the Hub a minute and more."""

_PASSING = {408, 425, 429, 500, 502, 503, 504}
_CONFLICTS = {409, 412}
_LOGIN = "`gpu-train credentials add hf` or `hf auth login` stores a token"
_READ_BYTES = 1 << 20
_LISTED = 1000
T = TypeVar("T")

_ATTEMPTS = 2
"""How often the client may make one request, when there is no answer; whoever called us tries again more patiently."""


class _Call:
    """A call of ours: what it is about, in words, and how often each of its requests was made."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.made: Counter[str] = Counter()


_call: ContextVar[_Call | None] = ContextVar("_call", default=None)
"""The call that is being made here; None for those of others."""


class Hub:
    """What all calls for one sink have in common; threads may share it."""

    def __init__(self, address: str, endpoint: str | None, credentials: Source | None) -> None:
        self.address = address
        self._endpoint = endpoint
        self._credentials = credentials
        self._answers = False

    def api(self) -> HfApi:
        """The client with the token as it is now.

        Raises:
            Refused, Unavailable: from the credentials.
        """
        token = self._credentials().get("token") if self._credentials is not None else None
        return HfApi(endpoint=self._endpoint, token=token, library_name="gpu-train")

    @contextmanager
    def calls(self, key: str = "") -> Iterator[HfApi]:
        """Calls to the client for one object, or for several. What they raise is in our words afterwards.

        Raises:
            Unavailable, Refused: see `ObjectStore`.
            NotFound: when a repository, revision or file is not there.
        """
        where = f"{self.address}: {key}" if key else self.address
        mark = _call.set(_Call(where))
        try:
            with _without_bars():
                _prepare_session(where)
                api = self.api()
                self._knock(api)
                yield api
        except GpuTrainError:
            raise
        except Exception as e:
            self._answers = False
            # Without the client's own words behind them: signed addresses are in those.
            if (ours := _explained(e, where)) is not None:
                raise ours from None
            raise
        finally:
            _call.reset(mark)

    def _knock(self, api: HfApi) -> None:
        """See whether the hub answers at all, when that is not known.

        Where nobody listens, the client makes a new session, without our hooks, and tries for half a minute.
        """
        if not self._answers:
            get_session().head(api.endpoint, follow_redirects=False)
            self._answers = True

    def each(self, begin: Callable[[HfApi], Iterable[T]]) -> Iterator[T]:
        """What the client lists, some at a time: between them, this process's other calls are not ours."""
        with self.calls() as api:
            found = iter(begin(api))
        while True:
            with self.calls():
                some = list(islice(found, _LISTED))
            yield from some
            if len(some) < _LISTED:
                return

    def read(self, url: str, key: str, length: int, offset: int) -> bytes:
        """Bytes of a file at an address; fewer only at its end.

        Raises:
            NotFound: when there is no such file.
        """
        wanted = {"range": f"bytes={offset}-{offset + length - 1}", "accept-encoding": "identity"}
        with (
            self.calls(key) as api,
            get_session().stream("GET", url, headers=headers_of(api) | wanted) as response,
        ):
            if response.status_code == 416:  # behind the end
                return b""
            hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else offset
            data = bytearray()
            for part in response.iter_bytes(_READ_BYTES):
                data += part[skip:]
                skip = max(0, skip - len(part))
                if len(data) >= length:
                    break
            return bytes(data[:length])


def headers_of(api: HfApi) -> dict[str, str]:
    """What the client sends with each request; the token is in it."""
    found: dict[str, str] = build_hf_headers(token=api.token, library_name="gpu-train")
    return found


def has_xet() -> bool:
    """Whether the client sends paths and bytes through xet."""
    return not constants.HF_HUB_DISABLE_XET and find_spec("hf_xet") is not None


def status_of(error: Exception) -> int | None:
    """The status of an answer that the client turned into an error."""
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _prepare_session(where: str) -> None:
    """Put our hooks on the client's session; it makes a new one after some errors."""
    hooks = getattr(get_session(), "event_hooks", None)
    if hooks is None:
        raise Refused(f"{where}: this huggingface_hub is too old; `pip install -U 'huggingface_hub>=1.0'`")
    for kind, hook in (("request", _on_request), ("response", _on_response)):
        if hook not in hooks[kind]:
            hooks[kind].append(hook)


def _on_request(request: Any) -> None:
    call = _call.get()
    if call is None:
        return
    name = f"{request.method} {request.url}"
    call.made[name] += 1
    if call.made[name] > _ATTEMPTS:
        raise Unavailable(f"{call.where}: no answer from the hub")
    given = request.extensions.get("timeout", {})
    request.extensions["timeout"] = TIMEOUT_S | {name: value for name, value in given.items() if value is not None}


def _on_response(response: Any) -> None:
    call = _call.get()
    if call is not None and response.status_code in _PASSING:
        what = "too many requests" if response.status_code == 429 else f"the hub answers {response.status_code}"
        raise Unavailable(f"{call.where}: {what}", _retry_after_s(response.headers))


def _is_of_others(record: logging.LogRecord) -> bool:
    return _call.get() is None or record.levelno > logging.WARNING


for _name in ("_commit_api", "hf_api", "utils._http"):
    logging.getLogger(f"huggingface_hub.{_name}").addFilter(_is_of_others)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the other side asks to be left alone; the Hub says it in a header of its own as well."""
    if text := headers.get("retry-after"):
        return seconds_of(text)
    limit = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


def _explained(error: BaseException, where: str) -> GpuTrainError | None:
    """An error of the client in our words; None for one that it does not raise on purpose."""
    if isinstance(error, GpuTrainError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return Refused(f"{where}: HF_HUB_OFFLINE is set; unset it to reach the hub")
    if isinstance(error, HfHubHTTPError):
        return _of_answer(error, where)
    if isinstance(error, (_transport_error(), ConnectionError, TimeoutError)):
        return Unavailable(f"{where}: no answer from the hub: {_in_short(error)}")
    if error.__cause__ is not None:  # the client says of some which file they were about
        return _explained(error.__cause__, where)
    if isinstance(error, RuntimeError) or type(error).__name__.startswith("Xet"):
        return Unavailable(f"{where}: the hub's storage fails: {_in_short(error)}")
    if isinstance(error, ValueError):
        return Refused(f"{where}: {_in_short(error)}")
    return None


def _in_short(error: BaseException) -> str:
    """Its own words, without what may be a signature in an address."""
    return re.sub(r"\?\S+", "?...", str(error)).strip()[:300] or type(error).__name__


def _transport_error() -> type[Exception]:
    """What the HTTP library raises that this version of the client uses."""
    library = sys.modules[type(get_session()).__module__.partition(".")[0]]
    found: type[Exception] = library.TransportError
    return found


def _of_answer(error: HfHubHTTPError, where: str) -> GpuTrainError:
    status = error.response.status_code
    said = f": {error.server_message}" if error.server_message else ""
    if status == 401:
        return Refused(f"{where}: the hub does not know the token, or wants one{said}; {_LOGIN}")
    if isinstance(error, GatedRepoError):
        return Refused(f"{where}: access is given on request; ask for it on the repository's page{said}")
    if status == 403:
        return Refused(f"{where}: the token has no right to do that{said}; make one that may write")
    if isinstance(error, EntryNotFoundError | RepositoryNotFoundError | RevisionNotFoundError) or status == 404:
        return NotFound(f"{where}: it is not there{said}")
    kind: type[SinkFailed] = Unavailable if status in _PASSING | _CONFLICTS or status >= 500 else Refused
    return kind(f"{where}: the hub answers {status}{said}")


class _Bars:
    """Keeps the client's progress bars away while calls of ours run, if they are not off anyway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._ours = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            if self._calls == 1 and not are_progress_bars_disabled():
                self._ours = True
                disable_progress_bars()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls and self._ours:
                    self._ours = False
                    enable_progress_bars()


_bars = _Bars()


def _without_bars() -> Any:
    # Where the variable says that they are wanted, the client does not let anybody put them out.
    return nullcontext() if constants.HF_HUB_DISABLE_PROGRESS_BARS is False else _bars()
