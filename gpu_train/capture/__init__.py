"""Capture: finding a finished checkpoint, pinning its bytes, storing them, committing the record.

The agent (`agent`, a process of its own: `python -m gpu_train.capture`) looks at the job's checkpoint folder a few
times a second. `finder` knows what one checkpoint is, `pin` keeps its files by hard links as soon as they are
seen, `judge` decides when it is whole: by what its framework does (`rules`, written in the words of `pattern`; the
known ones are in `frameworks`), by what its files say of each other (`inventory`) and by what the ones before it
had (`family`). `storing` puts it into the store and commits record, checkpoint and job in one transaction. `tail`
reads what the job and its runner append to their files.

This package stays light: a training script's `commit` uses `pin`.
"""
