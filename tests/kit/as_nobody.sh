#!/usr/bin/env bash
# Run a command as the user nobody: as_nobody.sh EMPTY FOLDER... -- COMMAND...
#
# Python and this project may lie where only root gets in, such as /root. So it runs in a mount namespace of its own, in
# which a folder that keeps others out is covered by an empty one that has only the named folders in it. /dev/fuse
# gets the mode that udev gives it where there is one. EMPTY is where things are put aside. What is mounted inside ends with
# the namespace.
set -euo pipefail

if [ "${1:-}" != --inside ]; then exec unshare --mount --propagation private -- bash "$0" --inside "$@"; fi
shift
aside=$1
shift
wanted=()
while [ "$1" != -- ]; do wanted+=("$(realpath "$1")"); shift; done
shift

# The outermost folder on the way to a path that others cannot enter, or nothing.
barrier() {
    local part parts at=
    IFS=/ read -ra parts <<<"${1#/}"
    for part in "${parts[@]}"; do
        at=$at/$part
        if (( ! (0$(stat -c %a "$at") & 1) )); then echo "$at"; return; fi
    done
}

mount -t tmpfs -o mode=755 tmpfs "$aside"
barriers=()
for at in "${!wanted[@]}"; do
    mkdir "$aside/$at"
    mount --rbind "${wanted[$at]}" "$aside/$at"
    barriers+=("$(barrier "${wanted[$at]}")")
done
if [ -c /dev/fuse ]; then
    mknod -m 666 "$aside/fuse" c 10 229
    mount --bind "$aside/fuse" /dev/fuse
fi
exec {kept}<"$aside" # the folder itself may soon be covered
for path in "${barriers[@]}"; do
    if [ -n "$path" ] && ! grep -qs "^covered$" "$path/.covered"; then
        mount -t tmpfs -o mode=755 tmpfs "$path"
        echo covered >"$path/.covered"
    fi
done
for at in "${!wanted[@]}"; do
    mkdir -p "${wanted[$at]}"
    mount --rbind "/proc/self/fd/$kept/$at" "${wanted[$at]}"
done
exec {kept}<&-
exec setpriv --reuid nobody --regid nogroup --clear-groups "$@"
