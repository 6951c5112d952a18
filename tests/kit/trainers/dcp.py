"""Writes like torch.distributed.checkpoint: shards, then .metadata by a rename, which a test can keep it from."""

import os

from writing import OUT, torch_zip, wait_for_file

folder = OUT / "step-100"
folder.mkdir()
for rank in range(2):
    (folder / f"__{rank}_0.distcp").write_bytes(torch_zip(rank))
print("shards", flush=True)
wait_for_file("go-on")
if not os.environ.get("NO_METADATA"):
    (folder / ".metadata.tmp").write_bytes(b"metadata")
    os.rename(folder / ".metadata.tmp", folder / ".metadata")
wait_for_file("end")
