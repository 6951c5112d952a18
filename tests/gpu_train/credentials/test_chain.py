"""Whose credentials a sink gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_train.config import Config, configure
from gpu_train.credentials.chain import Chain
from gpu_train.credentials.credential import Wanted
from gpu_train.credentials.local import LocalCredentials
from gpu_train.credentials.secret import Secret
from gpu_train.errors import Refused
from gpu_train.home import Home
from gpu_train_cas.errors import UsageError

HUB = Wanted("hf://me/ckpts", sink="hub")


@pytest.fixture(autouse=True)
def nothing_configured():
    yield
    configure()


def chain(home: Path, cwd: Path) -> Chain:
    return Chain.load(Home(home), cwd=cwd)


def settings(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


def test_each_place_in_its_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = chain(home, tmp_path).find(HUB)
    assert (found.fields, found.origin) == ({}, "the backend's own")
    LocalCredentials(Home(home)).add("hf", "hf", Secret("stored"))
    assert chain(home, tmp_path).find(HUB) == ({"token": "stored"}, "hf: file")
    settings(home, '[[credentials]]\nname = "mine"\ntype = "hf"\ntoken_ref = "env://SET"\n')
    monkeypatch.setenv("SET", "set")
    assert chain(home, tmp_path).find(HUB) == ({"token": "set"}, "mine: env://SET")
    monkeypatch.setenv("OWN", "own")
    assert chain(home, tmp_path).find(HUB._replace(reference="env://OWN")) == ({"token": "own"}, "env://OWN")


def test_they_are_read_at_each_attempt(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    source = chain(home, tmp_path).source(HUB._replace(reference=f"file://{token}"))
    with pytest.raises(Refused, match="No such file"):
        source()
    for text in ("first", "second"):
        token.write_text(text)
        assert source() == {"token": text}


def test_one_that_was_named_and_fails_does_not_give_way_to_another(home: Path, tmp_path: Path) -> None:
    LocalCredentials(Home(home)).add("hf", "hf", Secret("stored"))
    settings(home, '[[credentials]]\nname = "mine"\ntype = "hf"\ntoken_ref = "env://NOT_SET"\n')
    with pytest.raises(Refused, match="env://NOT_SET is not set"):
        chain(home, tmp_path).resolve(HUB)


def test_a_secret_in_place_of_a_reference_is_not_repeated(home: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="hub: a reference to a secret is expected") as caught:
        chain(home, tmp_path).resolve(HUB._replace(reference="hf_s3cret"))
    assert "s3cret" not in str(caught.value)


def test_tables_are_for_sinks_by_name_and_address(home: Path, tmp_path: Path, monkeypatch) -> None:
    settings(
        home,
        """
        [[credentials]]
        name = "one"
        type = "hf"
        token_ref = "env://ONE"
        sinks = ["hub"]
        [[credentials]]
        name = "two"
        token_ref = "env://TWO"
        sinks = ["hf://me", "hf://us"]
        [[credentials]]
        name = "three"
        type = "hf"
        token_ref = "env://THREE"
        """,
    )
    for name in ("ONE", "TWO", "THREE"):
        monkeypatch.setenv(name, name)
    found = chain(home, tmp_path)
    wanted = [HUB, HUB._replace(sink=""), Wanted("hf://us/x"), Wanted("hf://usual/x"), Wanted("s3://hub", sink="hub")]
    assert [found.resolve(one).get("token") for one in wanted] == ["ONE", "TWO", "TWO", "THREE", None]


def test_what_is_used_leaves_the_others_out(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [{"name": n, "type": "hf", "token_ref": f"env://{n.upper()}", "sinks": [f"hf://{n}"]} for n in ("a", "b")]
    for name in ("A", "B"):
        monkeypatch.setenv(name, name)
    configure(registry={"credentials": tables}, use=["b", "some-sink"])
    assert chain(home, tmp_path).resolve(Wanted("hf://a/x")) == {"token": "B"}
    configure(registry={"credentials": tables})
    assert chain(home, tmp_path).resolve(Wanted("hf://a/x")) == {"token": "A"}
    assert chain(home, tmp_path).resolve(Wanted("hf://c/x")) == {}


def test_what_was_configured_reaches_children_as_references(home: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    table = {"name": "a", "type": "hf", "token_ref": "env://KEY", "sinks": ["hf://me"]}
    configure(registry={"credentials": [table]}, use=["a"])
    env = Config.load(Home(home), cwd=tmp_path).as_environment()
    configure()
    again = Config.load(Home(home), cwd=tmp_path, environ=env)
    assert [str(one) for one in again.credentials] == ["hf from env://KEY for hf://me"]
    assert again.use == ("a",)
    assert not any("s3cret" in text for text in env.values())
    with pytest.raises(UsageError, match="GPU_TRAIN_CREDENTIALS: JSON is expected"):
        Config.load(Home(home), cwd=tmp_path, environ={"GPU_TRAIN_CREDENTIALS": "s3cret"})


def test_tables_of_several_files_add_up(home: Path, tmp_path: Path) -> None:
    settings(
        home,
        '[[credentials]]\nname = "a"\ntype = "s3"\nsecret_ref = "env://A"\n'
        '[[credentials]]\nname = "b"\ntype = "s3"\nsecret_ref = "env://B"\n',
    )
    (tmp_path / "gpu-train.toml").write_text('[[credentials]]\nname = "b"\ntype = "gcs"\nsecret_ref = "env://C"\n')
    config = Config.load(Home(home), cwd=tmp_path)
    assert {one.name: (one.type, str(one.reference)) for one in config.credentials} == {
        "a": ("s3", "env://A"), "b": ("gcs", "env://C"),
    }  # fmt: skip
    assert config.origin("credentials.b") == str(tmp_path / "gpu-train.toml")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "table 1: it needs a name"),
        ({"name": "x", "secret": "s3cret"}, r"table 1 \(x\): there is no field 'secret'.*a secret itself is not set"),
        ({"name": "x", "type": "ftp"}, "its type must be one of s3, gcs, hf"),
        ({"name": "x", "type": "hf"}, "it needs one of secret_ref and token_ref"),
        ({"name": "x", "type": "hf", "secret_ref": "env://A", "token_ref": "env://B"}, "it needs one of"),
        ({"name": "x", "type": "hf", "token_ref": "hf_s3cret"}, "token_ref: a reference to a secret is expected"),
        ({"name": "x", "type": "hf", "token_ref": "env://A", "sinks": "hub"}, "sinks must be a list"),
    ],
)
def test_a_wrong_table_is_named_and_its_values_are_not(table: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=rf"gpu_train\.configure:credentials: .*{says}") as caught:
        configure(registry={"credentials": [table]})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(UsageError, match="there are two of the name x"):
        configure(registry={"credentials": [{"name": "x", "type": "hf", "token_ref": "env://A"}] * 2})
