"""Capture: finding a finished checkpoint, pinning its bytes, storing them, committing the record.

The agent (`agent`, a process of its own: `python -m gpu_train.capture`) looks at the job's checkpoint folder a few
times a second. `finder` knows what one checkpoint is, `pin` keeps its files by hard links as soon as they are
seen, `rules` and `judge` decide when it is whole, `storing` puts it into the store and commits record,
checkpoint and job in one transaction. `tail` reads what the job and its runner append to their files.

This package stays light: a training script's `commit` uses `pin`.
"""
