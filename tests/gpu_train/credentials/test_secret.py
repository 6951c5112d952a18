"""Secrets do not show themselves."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback

import msgpack
import pytest

from gpu_train.credentials.secret import Secret, Secrets


def test_a_secret_is_given_by_reveal_alone() -> None:
    one = Secret("s3cret")
    shown = [str(one), repr(one), f"{one}", f"{one:>20}", "%s %r" % (one, one), repr([one]), repr({"a": one})]  # noqa: UP031
    assert not any("s3cret" in text for text in shown)
    assert one.reveal() == "s3cret"
    assert (bool(one), bool(Secret(""))) == (True, False)


def test_fields_show_their_names(caplog: pytest.LogCaptureFixture) -> None:
    fields = Secrets({"token": "s3cret"})
    logging.getLogger("x").warning("got %s %r", fields, fields)
    assert "Secrets(token)" in caplog.text
    assert "s3cret" not in caplog.text + repr(fields) + f"{fields}" + repr([fields])
    assert dict(fields) == {"token": "s3cret"} == fields
    assert fields != Secrets({"token": "other"})
    assert hash(fields) == hash(Secrets({"token": "s3cret"}))


@pytest.mark.parametrize("write", [pickle.dumps, copy.copy, json.dumps, msgpack.packb], ids=lambda f: f.__module__)
@pytest.mark.parametrize("secret", [Secret("s3cret"), Secrets({"token": "s3cret"})])
def test_they_are_not_written_anywhere(write, secret) -> None:
    with pytest.raises(TypeError) as caught:
        write(secret)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
