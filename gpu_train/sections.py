"""The sections of settings, `[defaults]` and so on: every setting is a field here, with its type and default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpu_train.retention.setting import (
    KEEP,
    Best,
    Count,
    Plain,
    Retention,
    Seconds,
    bests_of,
    count_of,
    plain_of,
    seconds_of,
)
from gpu_train.rule import Rule, rules_of
from gpu_train.sinks.setting import SinkSetting, sinks_of
from gpu_train.size import AUTO, Size, size_of


class Defaults(NamedTuple):
    """`[defaults]`: what holds when a command or call says nothing.

    Attributes:
        project: the project of new jobs.
        provider: where jobs run.
        snapshot_code: whether each run records the code it ran.
        code_root: the folder to record, relative to the job's working directory.
        code_exclude: patterns left out of code versions, beside the built-in ones.
        use_gitignore: whether code versions also leave out what .gitignore names.
        trash_days: how many days removed records can be brought back.
        plain_checkpoints: what the agent leaves of the trainer's own files once they are stored: "keep" all of them,
            the "latest", or "none"; of a running job what it may still need stays.
        best_metric: the metric behind `best`; "" chooses eval_loss, else loss.
        best_mode: "min" or "max"; "" goes by the metric's name.
        bt_aliases: whether jobs also get BT_CHECKPOINT_DIR and BT_LOAD_CHECKPOINT_DIR.
    """

    project: str = "default"
    provider: str = "local"
    snapshot_code: bool = True
    code_root: str = "."
    code_exclude: tuple[str, ...] = ()
    use_gitignore: bool = False
    trash_days: float = 7.0
    plain_checkpoints: Plain = KEEP
    best_metric: str = ""
    best_mode: str = ""
    bt_aliases: bool = False


class Capture(NamedTuple):
    """`[capture]`: how checkpoints are found and stored.

    Attributes:
        scan_s: seconds between two looks at the checkpoint folder.
        settle_s: seconds without any change before files without another proof count as finished.
        retry_s: seconds before storing is tried again after the disk was full.
        reserve_bytes: what storing, and links that only we hold, leave free of a disk that a running job writes its
            checkpoints to; "auto" is what its largest recent save took and a little more.
        max_pin_bytes: at most so much do links and copies hold of checkpoints that the trainer has deleted and that
            are not stored yet; "auto" is half of what would be free without them, or one save if that is
            more.
        rules: how other frameworks write checkpoints, beside those that are known; each is a table `[[capture.rules]]`
            with the fields of `gpu_train.rule.Rule`.
    """

    scan_s: float = 0.1
    settle_s: float = 2.0
    retry_s: float = 5.0
    reserve_bytes: Size = AUTO
    max_pin_bytes: Size = AUTO
    rules: tuple[Rule, ...] = ()


class Run(NamedTuple):
    """`[run]`: how jobs are ended.

    Attributes:
        interrupt_grace_s: seconds between SIGTERM and SIGKILL, once a job was told to end.
    """

    interrupt_grace_s: float = 30.0


class Sinks(NamedTuple):
    """`[sinks]`: destinations outside.

    Attributes:
        checkpoints: where checkpoints are pushed to; tables or addresses, see `gpu_train.sinks.setting`.
        logs: where logs are pushed to.
        drain_s: seconds that a run waits in the end for what is still being pushed; the rest goes on without it.
    """

    checkpoints: tuple[SinkSetting, ...] = ()
    logs: tuple[SinkSetting, ...] = ()
    drain_s: float = 60.0


SECTIONS: Mapping[str, Any] = {
    "defaults": Defaults, "capture": Capture, "run": Run, "sinks": Sinks, "retention": Retention,
}  # fmt: skip
CREDENTIALS = "credentials"
"""The list of tables that say where secrets are: `[[credentials]]` (`credentials.credential`)."""

PROJECTS = "projects"
"""The table of what is set for single projects: `[projects.NAME.retention]`."""

READERS: Mapping[Any, Callable[[Any], Any]] = {
    Count: count_of, Plain: plain_of, Seconds: seconds_of, Size: size_of, tuple[Best, ...]: bests_of,
    tuple[Rule, ...]: rules_of, tuple[SinkSetting, ...]: sinks_of,
}  # fmt: skip
"""Types of settings that read values themselves, texts too; they raise ValueError with what they expect."""
