"""The language of rules, and what follows from all of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpu_train.capture.frameworks import BUILT_IN, KNOWN, rulebook
from gpu_train.capture.rules import applies, check, missing, names_it, tags
from gpu_train.rule import Rule


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a b", "complete": ("x",)}, "name 'a b' must be of letters"),
        ({"name": "files", "complete": ("x",)}, "name 'files' is what another proof is called"),
        ({"name": "a"}, "it says nothing about when a checkpoint is whole; give one of complete"),
        ({"name": "a", "rest_s": -1.0}, "rest_s -1.0 is no number of seconds"),
        ({"name": "a", "rest_s": float("nan")}, "rest_s nan is no number"),
        ({"name": "a", "rest_s": 1.0, "names": ()}, "names is empty, so that it applies to nothing"),
        ({"name": "a", "complete": ("[x",)}, r"complete '\[x' is no pattern"),
        ({"name": "a", "complete": ("/x",)}, "complete '/x' must be a path below the checkpoint"),
        (
            {"name": "a", "complete": ("{folder}x",)},
            r"complete '\{folder\}x' has \{folder\} in it, which must come",
        ),
        ({"name": "a", "complete": ("{a}{b}",), "having": ("{a}", "{b}")}, "must come from a pattern of `having`"),
        ({"name": "a", "temporary": ("*.saving",)}, "temporary .* must have {name} in it once"),
        ({"name": "a", "together": ("*.pt",)}, "together .* must have {stem} in it"),
        ({"name": "a", "ranks": ("{folder}x",)}, "ranks .* must have a number in it"),
    ],
)
def test_what_is_wrong_with_a_rule(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(Rule(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", BUILT_IN)
def test_the_built_in_ones_are_sound(rule: Rule) -> None:
    assert check(rule) is rule


def test_signs_for_each_folder() -> None:
    rule = Rule("r", having=("{folder}*.distcp",), complete=("{folder}.metadata",))
    files = ["model/a.distcp", "optimizer/a.distcp", "model/.metadata"]
    assert applies(rule, "x", files)
    assert missing(rule, files) == ["optimizer/.metadata"]
    assert missing(rule, [*files, "optimizer/.metadata"]) == []
    assert missing(rule, ["a.distcp"]) == [".metadata"]


def test_one_of_two_signs() -> None:
    rule = Rule("r", having=("__{rank}_*.distcp",), complete=(".metadata | __{rank}.metadata",))
    assert missing(rule, ["__0_0.distcp", "__1_0.distcp"]) == [".metadata"]
    assert missing(rule, ["__0_0.distcp", "__1_0.distcp", ".metadata"]) == []
    assert missing(rule, ["__0_0.distcp", "__1_0.distcp", "__0.metadata"]) == [".metadata"]
    assert missing(rule, ["__0_0.distcp", "__1_0.distcp", "__0.metadata", "__1.metadata"]) == []


@pytest.mark.parametrize(
    ("text", "tag", "answer"),
    [
        ("global_step100\n", "global_step100", True), ("global_step200", "global_step100", True),
        ("global_step50", "global_step100", False), ("", "global_step100", False), ("epoch7", "global_step5", False),
        ("500", "iter_0000500", True), ("600", "iter_0000500", True), ("400", "iter_0000500", False),
        ("release", "release", True), ("500", "release", False), ("pytorch_model", "pytorch_model", True),
        ("my tag", "my tag", True),
    ],
)  # fmt: skip
def test_text_files_that_name_checkpoints(text: str, tag: str, answer: bool) -> None:
    assert names_it(text, tag) is answer


def test_where_a_checkpoint_is_named() -> None:
    rule = Rule("r", having=("{folder}*.pt",), named_in=("{folder}../latest",))
    assert list(tags(rule, "global_step5", ["a.pt"])) == [("../latest", "global_step5")]
    assert list(tags(rule, "checkpoint-5", ["global_step5/a.pt"])) == [("latest", "global_step5")]
    assert rulebook([rule]).text_files >= {"latest"}


def test_names_that_say_that_it_is_being_written() -> None:
    own = rulebook([Rule("mine", names=("snap-*",), temporary=("{name}.saving",), writing=("BUSY", "../{stem}.lock"))])
    assert own.writing_inside.fullmatch("BUSY")
    assert own.writing_inside.fullmatch("model.tmp")
    assert own.writing_beside("snap-5.pt", {"snap-5.lock", "x"}) == "snap-5.lock"
    assert own.writing_beside("m.ckpt", {"m-unfinished"}) == "m-unfinished"
    assert own.writing_beside("m.ckpt", {"n-unfinished"}) == ""
    assert own.final_name("snap-5.saving") == "snap-5"
    assert own.final_name("other.saving") is None
    assert KNOWN.final_name("tmp-checkpoint-500") == "checkpoint-500"
    assert KNOWN.final_name("5.orbax-checkpoint-tmp-17") == "5"
    assert KNOWN.final_name("tmp-old-7") is None


def test_parts_and_groups() -> None:
    assert KNOWN.parts({"unet"}, set()) == set()
    assert KNOWN.parts({"unet", "vae", "logs"}, set()) == {"unet", "vae"}
    assert KNOWN.parts({"unet", "logs"}, {"model_index.json"}) == {"unet"}
    assert KNOWN.parts({"pytorch_model_fsdp_0"}, set()) == {"pytorch_model_fsdp_0"}
    files = {"a-1.index", "a-1.data-00000-of-00002", "a-1.data-00001-of-00002", "b-rank0.pt", "checkpoint", "c.pt"}
    assert KNOWN.groups(files) == {
        "a-1": {"a-1.index", "a-1.data-00000-of-00002", "a-1.data-00001-of-00002"}, "b": {"b-rank0.pt"},
    }  # fmt: skip


def test_rules_of_the_user_come_first() -> None:
    mine = Rule("mine", ("checkpoint-*",), complete=("DONE",))
    own = rulebook([mine])
    assert own.rule_for("checkpoint-5", ["training_args.bin"]) is mine
    assert KNOWN.rule_for("checkpoint-5", ["training_args.bin"]).name == "hf-trainer"  # type: ignore[union-attr]
    assert KNOWN.rule_for("anything", ["w.bin"]) is None


def test_the_guides_example_is_a_rule() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/capture.md").read_text()
    (example,) = tomllib.loads(guide.partition("```toml\n")[2].partition("```")[0])["capture"]["rules"]
    rule = Rule(**{key: tuple(value) if isinstance(value, list) else value for key, value in example.items()})
    files = ["weights-0.bin", "weights-1.bin", "weights-0.done", "END"]
    assert applies(rule, "snap-5", files)
    assert missing(rule, files) == ["weights-1.done"]


def test_the_guide_lists_every_rule_and_what_it_waits_for() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/capture.md").read_text()
    rows = {line.split("|")[1].strip().strip("`"): line for line in guide.splitlines() if line.startswith("| `")}
    for rule in BUILT_IN:
        if rule.is_marked:
            assert rule.name in rows, f"docs/guides/capture.md has no row for {rule.name}"
            for sign in (*rule.complete, *rule.named_in):
                for word in sign.replace("{folder}", "").replace("../", "").split(" | "):
                    assert f"`{word}`" in rows[rule.name], f"the row of {rule.name} does not have `{word}`"
