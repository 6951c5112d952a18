"""Which requests are let through, without a server."""

import base64

import pytest

from gpu_train_fuse.gate import Gate
from gpu_train_fuse.server import is_loopback, url_of


def ask(gate, method="GET", **environ):
    """The status, the headers and the body of an answer."""
    told = []
    body = gate(
        {"REQUEST_METHOD": method, "HTTP_HOST": "127.0.0.1:8765", **environ},
        lambda status, headers, exc_info=None: told.append((status, dict(headers))),
    )
    (status, headers), *more = told
    assert more == []
    return int(status.split()[0]), headers, b"".join(body)


def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"in"]


@pytest.fixture
def gate():
    return Gate(application, "127.0.0.1")


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8765", "localhost:9000", "LOCALHOST", "localhost.", "a.localhost", "[::1]:8765", "10.0.0.7"]
)
def test_addresses_and_this_machines_names_are_answered(gate, name):
    assert ask(gate, HTTP_HOST=name)[::2] == (200, b"in")


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example:8765", "localhost.evil.example", "", "[evil"])
def test_names_that_others_can_point_here_are_not(gate, name):
    status, _, body = ask(gate, HTTP_HOST=name)
    assert (status, b"not served under the name" in body) == (403, True)


def test_the_name_that_it_was_started_with_is_answered():
    assert ask(Gate(application, "box.example"), HTTP_HOST="Box.Example:8765")[0] == 200


@pytest.mark.parametrize(
    "method", ["PUT", "POST", "DELETE", "MKCOL", "COPY", "MOVE", "PROPPATCH", "LOCK", "UNLOCK", "PATCH", "TRACE"]
)
def test_writes_are_refused(gate, method):
    status, headers, body = ask(gate, method)
    assert (status, headers["Allow"]) == (405, "OPTIONS, HEAD, GET, PROPFIND")
    assert b"read-only" in body


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PROPFIND"])
def test_no_answer_can_be_used_in_or_as_another_page(gate, method):
    _, headers, _ = ask(gate, method)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "sandbox" in headers["Content-Security-Policy"]
    assert not any(name.startswith("Access-Control") for name in headers)


def test_a_propfind_has_a_small_body_of_known_length(gate):
    assert ask(gate, "PROPFIND", CONTENT_LENGTH="65537")[0] == 413
    assert ask(gate, "PROPFIND", HTTP_TRANSFER_ENCODING="chunked")[0] == 411
    assert ask(gate, "PROPFIND", CONTENT_LENGTH="65536")[0] == 200


def basic(password):
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


def test_a_password_is_asked_for_and_known_by_basic_and_bearer():
    gate = Gate(application, "0.0.0.0", "pass:wörd")
    status, headers, _ = ask(gate)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="gpu-train", charset="UTF-8"')
    assert ask(gate, HTTP_AUTHORIZATION=basic("pass:wörd"))[0] == 200
    assert ask(gate, HTTP_AUTHORIZATION="Bearer pass:wörd".encode().decode("latin-1"))[0] == 200
    wrong = ["Basic", "Basic !!", "Basic YQ==", "Bearer", "Bearer pass", "Digest x", "x" * 9999]
    assert {ask(gate, HTTP_AUTHORIZATION=header)[0] for header in [basic("pass"), basic(""), *wrong]} == {401}
    assert ask(gate, "PUT")[0] == 401, "who may not read is told nothing else"


def test_which_addresses_are_this_machines_alone():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.7", "no.such.name.invalid")] == [False] * 4


def test_the_address_that_is_printed():
    assert url_of("127.0.0.1", 1) == "http://127.0.0.1:1/"
    assert url_of("::1", 2) == "http://[::1]:2/"
    assert url_of("localhost", 3) == "http://localhost:3/"
    assert "0.0.0.0" not in url_of("0.0.0.0", 4)
