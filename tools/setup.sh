#!/usr/bin/env bash
# Make what a make target needs: tools/setup.sh demo|test|bench
#
# Debian packages are installed when they can be (as root, or with sudo that asks nothing) and are skipped with
# one line when they cannot. Python packages go to .venv, from whatever index pip is configured for. A stamp
# per profile, made of everything that decides the outcome, keeps later calls to a few milliseconds.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

profile=${1:?usage: tools/setup.sh demo|test|bench}
case $profile in
    demo)  extras=;          commands="fusermount3:fuse3" ;;
    test)  extras=dev;       commands="fusermount3:fuse3 rsync:rsync sshd:openssh-server strace:strace curl:curl mount.davfs:davfs2 zsh:zsh fish:fish" ;;
    bench) extras=;          commands="fusermount3:fuse3 borg:borgbackup,python3-pyfuse3 restic:restic" ;;
    *) echo "setup: no profile '$profile': use demo, test or bench" >&2; exit 2 ;;
esac
PATH=$PATH:/usr/sbin:/sbin

say() { echo "setup: $*" >&2; }

# ---------------------------------------------------------------- Python

# The first Python >= 3.11: the one asked for with PYTHON=, or one of the usual names.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    say "no Python >= 3.11 found; install one, or name it: make PYTHON=/path/to/python3 ..."
    return 1
}

# ---------------------------------------------------------------- Debian packages

# How to run apt-get here, or nothing where it cannot be run without asking a person.
as_root() {
    command -v apt-get >/dev/null || return 0
    if [ "$(id -u)" = 0 ]; then echo env
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then echo "sudo -n env"
    fi
}

# Install the named Debian packages; fails, with one line, where that is not possible.
install_debian() {
    local root log
    root=$(as_root)
    if [ -z "$root" ]; then
        say "skipped Debian packages, not root and no sudo without a password: $* (what needs them is skipped)"
        return 1
    fi
    say "installing Debian packages: $*"
    log=$(mktemp)
    if $root DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1 \
        || { $root apt-get update -q >>"$log" 2>&1 \
             && $root DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >>"$log" 2>&1; }
    then
        rm -f "$log"
    else
        say "skipped Debian packages, apt-get could not install them: $* (what needs them is skipped; $log says why)"
        return 1
    fi
}

system_packages() {
    local missing=() pair packages
    for pair in $commands; do
        command -v "${pair%%:*}" >/dev/null && continue
        IFS=, read -ra packages <<<"${pair##*:}"
        missing+=("${packages[@]}")
    done
    [ ${#missing[@]} = 0 ] || install_debian "${missing[@]}" || true
}

# ---------------------------------------------------------------- the virtual environment

make_venv() {
    # A venv that cannot start (its Python was removed, its folder was moved) is made anew.
    if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        install_debian python3-venv || { say "$python cannot make virtual environments: install python3-venv"; return 1; }
    fi
    say "creating .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv
}

# Everything that decides what the environment holds: profile, place, Python, the packages there are, their needs.
fingerprint() {
    { echo "$profile" "$PWD" "$python"; "$python" --version
      cat tools/setup.sh pyproject.toml; ls -d gpu_train/__init__.py ./*/gpu_train*/__init__.py
      cat setup.py cas/native/* || true; } 2>/dev/null | sha256sum
}

python=$(find_python)
stamp=.venv/.setup-$profile
now=$(fingerprint)
if [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then exit 0; fi

system_packages
make_venv
say "installing Python packages for '$profile' into .venv (the first time takes a minute or more)"
.venv/bin/python -m pip install --quiet --quiet --editable ".${extras:+[$extras]}"
echo "$now" >"$stamp"
