"""Mounting: a job, or the whole home, as a read-only folder.

    mounted = mount(workspace, "my-job")     # <home>/mnt/<job id>, served by a process of its own
    umount(mounted)                          # and that process ends
    serve_webdav(workspace, "my-job")        # the same over WebDAV, where nothing can be mounted

Words: the *tree* (`FileTree`) says what is where; it is made of *nodes*, reads the home through a *catalogue*
and keeps what it read on a *shelf*; the *adapter* answers libfuse from it, `webdav` its clients from a *linkless*
view of it, behind a *gate*. `table` lists the mounts there are.

Modules, bottom up: support, node, holds | table, listing, shelf, tree, linkless (pure up to here), report, watcher,
binding (the only importer of mfusepy), adapter, catalogue, unmount, mountpoint, lifecycle, __main__ (the process
behind a mount) | gate, page, webdav (the only importer of wsgidav), webserver (of cheroot), server.
"""

from gpu_train_fuse.lifecycle import ALL, log_file, mount, mount_here
from gpu_train_fuse.server import serve_webdav
from gpu_train_fuse.support import MountUnavailable, check
from gpu_train_fuse.table import Mount, State, mounts
from gpu_train_fuse.unmount import find, umount, umount_stale

__all__ = [
    "ALL",
    "Mount",
    "MountUnavailable",
    "State",
    "check",
    "find",
    "log_file",
    "mount",
    "mount_here",
    "mounts",
    "serve_webdav",
    "umount",
    "umount_stale",
]
