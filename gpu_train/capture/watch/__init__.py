"""Seeing names come and go in a checkpoint folder, and keeping the bytes of files at once.

The *sentry* (`sentry`, a process of its own: `python -m gpu_train.capture.watch`) reads the kernel's events (`inotify`,
`folders`), holds each file that appears by a link (`hold`) and makes exact copies of those that may be written over in
place (`snapshot`, `keeper`). What it sees and does it tells as *sightings* (`sighting`, `outbox`), one after another.

The agent starts it and reads them (`lookout`), and keeps in mind what is where (`view`), so that a checkpoint can be
looked at as it was at any moment between two events, also when it is gone by now.
"""
