"""Capture: finding a finished checkpoint, pinning its bytes, storing them, committing the record.

The agent (`agent`, a process of its own: `python -m gpu_train.capture`) is told by the sentry (`watch`, another one)
what comes and goes in the job's checkpoint folder, and that its bytes are held. `finder` knows what one checkpoint is;
`tracker` keeps those that are not decided yet (`watched`, each a `candidate` with a pin of its own) apart from those
that are (`done`), and `overwritten` accounts for files that are written over in place. `judge` decides when one is
whole: by what its framework does (`rules`, written in the words of `pattern`; the known ones are in `frameworks`), by
what its files say of each other (`inventory`) and by what the ones before it had (`family`). `storing` puts it into
the store and commits record, checkpoint and job in one transaction. `tail` reads what the job and its runner append to
their files.

This package stays light: a training script's `commit` uses `pin`.
"""
