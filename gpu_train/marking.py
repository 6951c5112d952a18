"""What people note about stored checkpoints: that they are kept, and tags such as `deployed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace


def keep(workspace: Workspace, checkpoints: Iterable[Checkpoint], *, kept: bool = True) -> list[Checkpoint]:
    """Forbid, or with `kept` False allow again, that checkpoints are removed; those for which that is new.

    Raises:
        NotFound: when one was removed meanwhile; nothing was changed then.
    """
    return _change(workspace, checkpoints, "keep", lambda row: row._replace(kept=kept))


def tag(workspace: Workspace, checkpoints: Iterable[Checkpoint], tags: Mapping[str, str]) -> list[Checkpoint]:
    """Set tags of checkpoints, or take those away whose value is ""; those checkpoints that are different now.

    One that is tagged `deployed` is not removed.

    Raises:
        NotFound: when one was removed meanwhile; nothing was changed then.
    """

    def with_tags(row: Checkpoint) -> Checkpoint:
        return row._replace(tags={name: value for name, value in {**row.tags, **tags}.items() if value})

    return _change(workspace, checkpoints, "tag", with_tags)


def _change(
    workspace: Workspace, checkpoints: Iterable[Checkpoint], purpose: str, change: Callable[[Checkpoint], Checkpoint]
) -> list[Checkpoint]:
    changed = []
    with workspace.store.transaction(purpose) as txn:
        for old in checkpoints:
            now = workspace.checkpoints.get_in(txn.txn, old.job_id, old.seq)
            new = change(now or old)
            if new != now:
                workspace.checkpoints.put_in(txn, new)
                changed.append(new)
    return changed
