"""Destinations outside: a folder on another disk, S3, GCS, Hugging Face; what is replicated there, and back again.

`push_checkpoints` and `push_logs` push a job now; a running job is replicated by itself when sinks are set.

Map of the modules, bottom up: `setting` (a sink as it is set); `objects` (what all kinds of sink can do); `key`,
`journal` (what lies where, cas/spec/remote.md); `holdings` (what a sink holds, as this home knows it), `blocks`
(reading from it); `sink` (all of that); `shipment`, `push`, `logs` (sending), `pull`, `mend` (getting back); `queue`,
`replication` (what is to be sent), `opening` (from a setting to a sink), `pusher` (the process that sends), `pushing`
(sending now).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train.sinks.pushing import Pushed, push_checkpoints, push_logs
    from gpu_train.sinks.setting import SinkSetting

__all__ = ["Pushed", "SinkSetting", "push_checkpoints", "push_logs"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gpu_train.sinks.pushing": ("Pushed", "push_checkpoints", "push_logs"),
        "gpu_train.sinks.setting": ("SinkSetting",),
    },
)
