"""Every framework's order of files, stopped at each step: never whole before the framework itself would say so."""

from __future__ import annotations

import io
import json
import os
import struct
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from gpu_train.capture.decision import Decision
from gpu_train.capture.frameworks import BUILT_IN
from gpu_train.capture.tracker import Tracker

KIT = Path(__file__).parents[2] / "kit"
ORDERS: list[dict[str, Any]] = tomllib.loads((KIT / "orders.toml").read_text())["order"]
orders = pytest.mark.parametrize("order", ORDERS, ids=[o["name"] for o in ORDERS])
Steps = list[tuple[str, str]]


def steps_of(order: dict[str, Any]) -> Steps:
    """The verb and the rest of each line."""
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in order["steps"].split("\n") if line]


class Writer:
    """Does the steps of an order below a folder, with files as the real libraries write them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0
        self.open: dict[str, BinaryIO] = {}

    def do(self, verb: str, rest: str) -> None:
        self.count += 1
        path, _, text = rest.partition(" = ")
        if verb == "mkdir":
            (self.root / path).mkdir(exist_ok=True)
        elif verb == "open":
            self.open[path] = open(self.root / path, "wb", buffering=0)  # noqa: SIM115  until its step `close`
            data = self._content(path, text)
            self.open[path].write(data[: len(data) * 2 // 3])
        elif verb == "close":
            self._finish(path, path, text)
        elif verb == "rename":
            before, after = rest.split(" ")
            if before in self.open:
                self._finish(before, after, "")
            (self.root / before).rename(self.root / after)
        elif verb == "unlink":
            (self.root / path).unlink()
        elif verb == "rmdir":
            (self.root / path).rmdir()
        else:
            raise AssertionError(f"no such step: {verb}")

    def _finish(self, path: str, name: str, text: str) -> None:
        with self.open.pop(path) as file:
            file.seek(0)
            file.truncate()
            file.write(self._content(name, text))

    def close(self) -> None:
        """Die."""
        for file in self.open.values():
            file.close()

    def _content(self, path: str, text: str) -> bytes:
        """Bytes for a file of that name, others each time."""
        name = path.rpartition("/")[2].removesuffix(".tmp")
        if text:
            return text.encode()
        if name.endswith(".safetensors") or name.startswith(".tmp"):
            header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
            return struct.pack("<Q", len(header)) + header + bytes([self.count % 256]) * 64
        if name.endswith((".pt", ".pth", ".bin", ".ckpt", ".distcp", ".pkl", ".tar")):
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("archive/data.pkl", f"{self.count:09}" * 9)
            return buffer.getvalue()
        if name.endswith(".metadata"):
            folder = (self.root / path).parent
            return b"pickle" + b"".join(os.fsencode(p.name) for p in sorted(folder.glob("*.distcp"))) + b"."
        if name.endswith(".index"):
            return b"table" + bytes.fromhex("57fb808b247547db")
        if name.endswith(".gguf"):
            return b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
        return json.dumps({"step": self.count}).encode()


class Watch:
    """A tracker beside the writer, and time that passes when the test says so."""

    def __init__(self, base: Path) -> None:
        self.root, self.now = base / "checkpoints", 1000.0
        self.root.mkdir(parents=True)
        self.tracker = Tracker(
            self.root, base / "pins", settle_s=2.0, clock=lambda: self.now, processes=lambda: {os.getpid()}
        )

    def rest(self, seconds: float) -> Iterator[Decision]:
        """Look again and again while nothing happens: at first often, then at the end of the time."""
        end = self.now + seconds
        for after in (0.1, 0.1, 0.2, 0.2, 0.4, 1.0, 1.5, end):
            self.now = min(self.now + after, end)
            self.tracker.look()
            yield from self.tracker.decide()

    def end(self) -> list[Decision]:
        """The job is killed right now."""
        self.now += 0.01
        self.tracker.look()
        return self.tracker.decide(ended=True)


def whole(decisions: list[Decision], order: dict[str, Any]) -> list[str]:
    """The names of those that were found whole, each by the right proof."""
    found = [d for d in decisions if d.verdict.is_whole]
    proofs = {d.candidate.name: d.verdict.proof for d in found}
    assert set(proofs.values()) <= {order["proof"]}, proofs
    return [d.candidate.name for d in found]


@orders
def test_it_may_stop_at_any_step(order: dict[str, Any], tmp_path: Path) -> None:
    watch, writer = Watch(tmp_path), Writer(tmp_path / "checkpoints")
    seen: list[str] = []
    told: list[str] = []
    for _ in range(2 if order["again"] else 1):
        steps = steps_of(order)
        for at, (verb, rest) in enumerate(steps):
            if verb == "whole":
                told.append(rest)
                seen += whole(list(watch.rest(31.0)), order)
                assert seen == told
                continue
            writer.do(verb, rest)
            if at + 1 < len(steps) and steps[at + 1][0] == "whole":
                continue
            decisions = list(watch.rest(order["pause_s"]))
            assert whole(decisions, order) == [], f"whole after `{verb} {rest}`"
            assert not decisions, [(d.candidate.name, d.verdict.missing) for d in decisions]


@orders
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_the_job_may_be_killed_at_any_step(order: dict[str, Any], again: bool, tmp_path: Path) -> None:
    steps = steps_of(order)
    before = steps if again and order["again"] else []
    if again and not before:
        pytest.skip("it does not write the same names again")
    for cut in range(1, len(steps) + 1):
        watch, writer = Watch(tmp_path / str(cut)), Writer(tmp_path / str(cut) / "checkpoints")
        allowed: list[str] = []
        found: list[Decision] = []
        for verb, rest in [*before, *steps[:cut]]:
            if verb == "whole":
                allowed.append(rest)
                found += watch.rest(31.0)
            else:
                writer.do(verb, rest)
        writer.close()
        found += watch.end()
        last = f"`{' '.join(steps[cut - 1])}`"
        good = whole(found, order)
        # Right at the completing step, before anything else happens, both are right.
        following = steps[cut][1:] if cut < len(steps) and steps[cut][0] == "whole" else ()
        assert good == allowed or good == [*allowed, *following], last
        for decision in found:
            if not decision.verdict.is_whole and not decision.gone:
                assert decision.verdict.missing, last


def test_every_rule_that_gives_a_proof_has_an_order() -> None:
    assert {rule.name for rule in BUILT_IN if rule.is_marked} <= {order["proof"] for order in ORDERS}
