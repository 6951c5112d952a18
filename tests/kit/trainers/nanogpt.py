"""Writes like nanoGPT: one ckpt.pt, over and over, in place."""

import os

from writing import OUT, torch_zip, wait_for_file

for version in range(1, int(os.environ.get("VERSIONS", "3")) + 1):
    data = torch_zip(version)
    with open(OUT / "ckpt.pt", "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        file.write(data[len(data) // 2 :])
    print("saved", version)
    wait_for_file(f"captured-{version}")
