"""Runs one job the way a program does: `run_job.py ID_FILE JSON`, the JSON being gpu_train.run's arguments.

The job's id is written to ID_FILE once it runs; the exit code is the job's. Notices go to NOTICE lines on stderr.
"""

import json
import os
import sys
from pathlib import Path

import gpu_train


def main() -> int:
    id_file, arguments = Path(sys.argv[1]), json.loads(sys.argv[2])

    def started(job: gpu_train.Job) -> None:
        part = id_file.with_suffix(".part")
        part.write_text(job.id)
        os.rename(part, id_file)

    job = gpu_train.run(
        **arguments, on_start=started, notify=lambda text: print("NOTICE", text, file=sys.stderr, flush=True)
    )
    return job.exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
