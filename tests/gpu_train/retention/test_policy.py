"""Policies against what they say, on jobs of all shapes, and against a slow second opinion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_train.duration import duration_text, parse_duration
from gpu_train.retention.plan import policy_of
from gpu_train.retention.policy import (
    AnyOf,
    BestN,
    EveryNSeconds,
    EveryNSteps,
    LatestDuration,
    LatestN,
    Policy,
    made_ns,
)
from gpu_train.retention.setting import Best, Retention
from gpu_train.tables.checkpoint import Checkpoint

NS = 10**9
numbers = st.sampled_from([0, 1, 2, 0.5, 1.5, 3.5, math.nan, math.inf, -math.inf])
facts = st.tuples(
    st.integers(0, 3),  # which name
    st.sampled_from([None, 0, 50, 100, 150, 300, 333]),  # step
    st.sampled_from([0, 10, 20, 110, 250, 260, 600, 4000]),  # when it was made, seconds
    st.dictionaries(st.sampled_from(["loss", "accuracy"]), numbers, max_size=2),
)


def job_of(rows: list[tuple[int, int | None, int, dict[str, float]]]) -> list[Checkpoint]:
    return [
        Checkpoint(
            "job", f"c-{name}~{seq}", seq=seq, step=step, created_ns=made * NS, committed_ns=seq * 100 * NS,
            metrics=metrics,
        )
        for seq, (name, step, made, metrics) in enumerate(rows, 3)
    ]  # fmt: skip


def jobs() -> st.SearchStrategy[list[Checkpoint]]:
    """The whole checkpoints of one job: steps and times in any order, some of them unknown or wrong."""
    return st.lists(facts, max_size=12).map(job_of)


policies = st.recursive(
    st.one_of(
        st.builds(LatestN, st.integers(1, 5)),
        st.builds(BestN, st.sampled_from(["loss", "accuracy"]), st.integers(1, 4), st.sampled_from(["", "min", "max"])),
        st.builds(EveryNSteps, st.sampled_from([1, 50, 100, 300])),
        st.builds(EveryNSeconds, st.sampled_from([0.5, 100.0, 250.0, 1e6])),
        st.builds(LatestDuration, st.sampled_from([0.5, 100.0, 250.0, 1e6])),
    ),
    lambda inner: st.builds(lambda some: AnyOf(tuple(some)), st.lists(inner, min_size=1, max_size=4)),
    max_leaves=4,
)


def kept(policy: Policy, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    preserved = policy.preserved(checkpoints)
    assert preserved.keys() <= {c.seq for c in checkpoints}
    assert all(preserved.values()), "every reason says something"
    return [c for c in checkpoints if c.seq in preserved]


@given(policies, jobs(), st.randoms())
def test_the_order_of_the_rows_does_not_matter(policy: Policy, job: list[Checkpoint], random) -> None:
    shuffled = random.sample(job, len(job))
    assert policy.preserved(shuffled) == policy.preserved(job)


@given(policies, jobs())
def test_what_is_preserved_stays_preserved_when_the_others_have_gone(policy: Policy, job: list[Checkpoint]) -> None:
    once = kept(policy, job)
    assert kept(policy, once) == once


@given(policies, jobs(), st.data())
def test_what_is_preserved_stays_so_when_only_some_of_the_others_have_gone(
    policy: Policy, job: list[Checkpoint], data
) -> None:
    once = kept(policy, job)
    others = [c for c in job if c not in once]
    left = [c for c in job if c in once or (others and data.draw(st.booleans()))]
    assert {c.seq for c in once} <= {c.seq for c in kept(policy, left)}


@given(st.lists(policies, min_size=1, max_size=4), jobs())
def test_any_of_preserves_what_one_of_them_does(some: list[Policy], job: list[Checkpoint]) -> None:
    union = {seq for policy in some for seq in policy.preserved(job)}
    assert set(AnyOf(tuple(some)).preserved(job)) == union


@given(st.integers(1, 5), jobs())
def test_latest(n: int, job: list[Checkpoint]) -> None:
    assert kept(LatestN(n), job) == job[-n:]


@given(st.integers(1, 3), st.sampled_from(["", "min", "max"]), jobs())
def test_best(n: int, mode: str, job: list[Checkpoint]) -> None:
    def better(a: Checkpoint, b: Checkpoint) -> bool:
        one, other = a.metrics["accuracy"], b.metrics["accuracy"]
        if one == other:
            return a.seq > b.seq
        return one < other if mode == "min" else one > other

    scored = [c for c in job if "accuracy" in c.metrics]
    finite = [c for c in scored if math.isfinite(c.metrics["accuracy"])]
    expected = {c.seq for c in finite if sum(better(other, c) for other in finite) < n}
    last = scored[-1].seq if scored else 0
    expected |= {c.seq for c in job if c.seq > last}
    assert {c.seq for c in kept(BestN("accuracy", n, mode), job)} == expected


@given(st.sampled_from([50, 100, 300]), jobs())
def test_every_n_steps(n: int, job: list[Checkpoint]) -> None:
    for one in job:
        later = [c for c in job if c.seq > one.seq and (c.base_name, c.step) == (one.base_name, one.step)]
        expected = one.step is not None and one.step % n == 0 and not later
        assert (one in kept(EveryNSteps(n), job)) == expected


@given(st.sampled_from([0.5, 100.0, 250.0]), jobs())
def test_every_n_seconds_leaves_no_gap_that_a_checkpoint_could_fill(seconds: float, job: list[Checkpoint]) -> None:
    times = sorted(made_ns(c) for c in kept(EveryNSeconds(seconds), job))
    assert all(b - a >= seconds * NS for a, b in itertools.pairwise(times))
    if job:
        assert times[0] == min(map(made_ns, job))
    for one in job:
        before = [t for t in times if t <= made_ns(one)]
        assert made_ns(one) in times or made_ns(one) - before[-1] < seconds * NS


@given(st.sampled_from([0.5, 100.0, 250.0]), jobs())
def test_latest_duration(seconds: float, job: list[Checkpoint]) -> None:
    newest = max(map(made_ns, job), default=0)
    assert kept(LatestDuration(seconds), job) == [c for c in job if newest - made_ns(c) <= seconds * NS]


def test_a_file_from_the_future_does_not_make_all_others_old() -> None:
    job = [Checkpoint("j", f"c{n}", seq=n, created_ns=n * NS, committed_ns=n * NS) for n in (1, 2)]
    job.append(Checkpoint("j", "wrong clock", seq=3, created_ns=10**20, committed_ns=3 * NS))
    assert kept(LatestDuration(5), job) == job


def test_what_settings_mean() -> None:
    said = Retention.from_row({"latest": 2, "best": [{"metric": "f1"}], "every_steps": 5, "unknown": 1})
    assert policy_of(said) == AnyOf((LatestN(2), BestN("f1", 1, ""), EveryNSteps(5)))
    assert Retention.from_row(said.to_row()) == said
    assert str(said) == "latest 2, best f1:1, every 5 steps"
    assert policy_of(Retention()) is None
    assert (str(Retention()), Retention().to_row()) == ("all", {})


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("loss", Best("loss")), ("loss:2", Best("loss", 2)), ("f1:3:max", Best("f1", 3, "max")),
        ("fid:min", Best("fid", 1, "min")), ("a:b", Best("a:b")), ("a:b:2:max", Best("a:b", 2, "max")),
    ],
)  # fmt: skip
def test_best_as_text(text: str, best: Best) -> None:
    assert Best.parse(text) == best
    assert Best.parse(str(best)) == best


@pytest.mark.parametrize("text", ["", ":2", "loss:0", ":min"])
def test_best_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match="is expected"):
        Best.parse(text)


@given(st.one_of(st.integers(1, 10**7), st.floats(0.001, 1000).map(lambda v: round(v, 3))))
def test_a_duration_as_text_means_the_same(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5h", 5400), ("1h30m", 5400), (" 2 D ", 172_800), ("2w", 1_209_600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1h30", "h", "1 2", "nan", "1e9", "٣"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)
