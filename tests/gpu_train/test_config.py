from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train.config import Config, configure
from gpu_train.home import Home
from gpu_train.retention.setting import Best, Retention
from gpu_train.rule import Rule
from gpu_train_cas.errors import UsageError


@pytest.fixture(autouse=True)
def _nothing_configured() -> Iterator[None]:
    yield
    configure()


def load(home: Path, cwd: Path, **env: str) -> Config:
    return Config.load(Home.locate(home), cwd=cwd, environ=env)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_defaults(home: Path, tmp_path: Path) -> None:
    config = load(home, tmp_path)
    assert (config.defaults.project, config.defaults.trash_days, config.defaults.snapshot_code) == ("default", 7, True)
    assert {s.origin for s in config.settings()} == {"default"}
    assert "capture.settle_s" in {s.key for s in config.settings()}


def test_stronger_sources_win(home: Path, tmp_path: Path) -> None:
    key, cwd = "defaults.project", tmp_path / "deep" / "er"
    cwd.mkdir(parents=True)

    def seen(**env: str) -> tuple[str, str]:
        config = load(home, cwd, **env)
        return config.defaults.project, config.origin(key)

    assert seen() == ("default", "default")
    user = write(home / "config.toml", '[defaults]\nproject = "user"\n')
    assert seen() == ("user", str(user))
    project = write(tmp_path / "gpu-train.toml", '[defaults]\nproject = "project"\n')
    assert seen() == ("project", str(project))
    configure(registry={"defaults": {"project": "call"}}, use=["a"])
    assert seen() == ("call", "gpu_train.configure")
    assert load(home, cwd).use == ("a",)
    assert seen(GPU_TRAIN_DEFAULTS_PROJECT="env") == ("env", "GPU_TRAIN_DEFAULTS_PROJECT")
    configure()
    assert seen() == ("project", str(project))


def test_what_only_this_process_knows_reaches_its_children(home: Path, tmp_path: Path) -> None:
    configure(registry={"defaults": {"snapshot_code": False, "code_exclude": ["a", "b"]}, "capture": {"settle_s": 1}})
    env = load(home, tmp_path).as_environment()
    configure()
    there = load(home, tmp_path, **env)
    assert (there.defaults.snapshot_code, there.defaults.code_exclude, there.capture.settle_s) == (False, ("a", "b"), 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[defaults]\nprojekt = "x"\n', "gpu-train.toml:defaults.projekt: no such setting; did you mean 'project'?"),
        ("[default]\n", "gpu-train.toml:default: no such section; did you mean 'defaults'?"),
        ("defaults = 3\n", "gpu-train.toml:defaults: a table is expected, this is a number"),
        ("[defaults]\nproject = 3\n", r"defaults.project: a string is expected, this is a number \(3\)"),
        ('[defaults]\nsnapshot_code = "no"\n', "defaults.snapshot_code: true or false is expected, this is a string"),
        ("[defaults]\ntrash_days = true\n", "defaults.trash_days: a number is expected, this is a boolean"),
        ('[sinks]\nlogs = "ftp://x"\n', "sinks.logs: 'ftp://x': an address begins with s3://"),
        ("[sinks]\nlogs = [1]\n", 'sinks.logs: a sink is {type = "s3"'),
        ('credentials = "x"\n', "gpu-train.toml:credentials: a list of tables is expected"),
        ("[defaults\n", "gpu-train.toml: not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(home: Path, tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path / "gpu-train.toml", text)
    with pytest.raises(UsageError, match=says):
        load(home, tmp_path)


def test_rules_of_the_user(home: Path, tmp_path: Path) -> None:
    text = """
        [[capture.rules]]
        name = "mine"
        names = ["snap-*"]
        complete = ["DONE"]
        [[capture.rules]]
        name = "slow"
        having = ["w.bin"]
        rest_s = 60
    """
    write(tmp_path / "gpu-train.toml", text)
    rules = load(home, tmp_path).capture.rules
    assert rules == (Rule("mine", ("snap-*",), complete=("DONE",)), Rule("slow", having=("w.bin",), rest_s=60.0))
    (shown,) = [s.value for s in load(home, tmp_path).settings() if s.key == "capture.rules"]
    assert [json.loads(text) for text in shown] == [
        {"name": "mine", "names": ["snap-*"], "complete": ["DONE"]},
        {"name": "slow", "having": ["w.bin"], "rest_s": 60.0},
    ]
    called = [{"name": "called", "complete": ["DONE"]}, {"name": "again", "rest_s": 3}]
    configure(registry={"capture": {"rules": called}})
    env = load(home, tmp_path).as_environment()
    configure()
    there = load(home, tmp_path, **env).capture.rules
    assert there == (Rule("called", complete=("DONE",)), Rule("again", rest_s=3.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[capture]\nrules = 3", "gpu-train.toml:capture.rules: a list of tables is expected"),
        ("[[capture.rules]]\ncomplete = ['x']", "capture.rules: table 1: it needs a name"),
        ("[[capture.rules]]\nname = 'a'\ncompleted = ['x']",
         "capture.rules: table 1: there is no field 'completed'; known are name, names"),
        ("[[capture.rules]]\nname = 'a'\ncomplete = 'x'",
         "capture.rules: table 1: complete must be a list of strings, not 'x'"),
        ("[[capture.rules]]\nname = 'a'\nrest_s = 1\n[[capture.rules]]\nname = 'b'\ncomplete = ['[x']",
         r"capture.rules: table 2 \(b\): complete '\[x' is no pattern"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_rule_is_named(home: Path, tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path / "gpu-train.toml", text)
    with pytest.raises(UsageError, match=says):
        load(home, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GPU_TRAIN_DEFAULTS_SNAPSHOT_CODE", "perhaps"),
        ("GPU_TRAIN_CAPTURE_SETTLE_S", "long"),
        ("GPU_TRAIN_CAPTURE_RULES", "mine"),
    ],
)
def test_a_wrong_variable_is_named(home: Path, tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{variable}"):
        load(home, tmp_path, **{variable: value})


def test_configure_changes_nothing_when_it_is_wrong(home: Path, tmp_path: Path) -> None:
    configure(registry={"defaults": {"project": "good"}})
    with pytest.raises(UsageError, match=r"gpu_train\.configure:defaults.trash_days: a number is expected"):
        configure(registry={"defaults": {"trash_days": "seven"}})
    assert load(home, tmp_path).defaults.project == "good"


def test_credentials_are_shown_as_what_they_are_for(home: Path, tmp_path: Path) -> None:
    text = '[[credentials]]\nname = "x"\ntype = "s3"\nsecret_ref = "cmd://vault read s3cret"\n'
    write(home / "config.toml", text)
    shown = {s.key: (s.value, s.origin) for s in load(home, tmp_path).settings()}
    assert shown["credentials.x"] == ("s3 from cmd://vault ... for all s3 sinks", str(home / "config.toml"))


def test_a_file_that_cannot_be_read(home: Path, tmp_path: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"config\.toml: cannot be read"):
        load(home, tmp_path)


def test_retention_for_all_for_a_project_and_from_the_environment(home: Path, tmp_path: Path) -> None:
    write(home / "config.toml", '[projects."my project".retention]\nlatest = 9\n')
    write(
        tmp_path / "gpu-train.toml",
        """
        [retention]
        latest = 3
        best = {metric = "eval_loss", n = 2}
        every_steps = 1000
        every_seconds = 3600
        latest_duration = "2d"
        [projects.search.retention]
        best = [{metric = "f1"}, {metric = "fid", mode = "max"}]
        """,
    )
    config = load(home, tmp_path, GPU_TRAIN_RETENTION_EVERY_SECONDS="90m")
    assert config.retention == Retention(3, (Best("eval_loss", 2),), 1000, 5400.0, 172800.0)
    assert config.projects == {
        "my project": Retention(9), "search": Retention(best=(Best("f1"), Best("fid", 1, "max"))),
    }  # fmt: skip
    shown = {s.key: s.value for s in config.settings()}
    assert shown["retention.best"] == ("eval_loss:2",)
    assert shown["projects.search.retention.best"] == ("f1:1", "fid:1:max")
    assert config.origin("projects.my project") == str(home / "config.toml")


def test_retention_that_was_configured_reaches_children(home: Path, tmp_path: Path) -> None:
    configure(registry={"retention": {"latest": 2, "best": {"metric": "val/loss:x", "n": 3}, "latest_duration": 1.5}})
    env = load(home, tmp_path).as_environment()
    configure()
    assert load(home, tmp_path, **env).retention == Retention(2, (Best("val/loss:x", 3),), latest_duration=1.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[retention]\nlatest = -1\n", "retention.latest: a whole number is expected, 0 or more"),
        ("[retention]\nlatest = true\n", "retention.latest: a whole number is expected"),
        ('[retention]\nbest = {metric = "x", count = 2}\n', r"retention.best: \{metric = .* is expected"),
        ('[retention]\nbest = {metric = "x", mode = "up"}\n', "retention.best"),
        ('[retention]\nlatest_duration = "2 fortnights"\n', "'2 fortnights' is no duration; write 90s, 15m, 2h or 7d"),
        ("[projects.x]\nlatest = 1\n", "projects.x.latest: no such table; known is retention"),
        ("[projects.x.retention]\nlast = 1\n", "projects.x.retention.last: no such setting; did you mean 'latest'"),
        ("projects = 1\n", "projects: a table is expected"),
    ],
)
def test_retention_that_makes_no_sense_is_named(home: Path, tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path / "gpu-train.toml", text)
    with pytest.raises(UsageError, match=says):
        load(home, tmp_path)
