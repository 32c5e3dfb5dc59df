#!/usr/bin/env bash
# Makes .venv with the tested torch, the mm toolboxes, the package itself (editable) and its test tools.
#   tools/setup_env.sh [PYTHON]      (default python3; 3.10 or newer)
# Safe to interrupt and to run again: it goes on from where it was.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
torch=(torch==2.11.0 torchvision==0.26.0)
mmcv=$(grep -o 'onedl-mmcv==[0-9.]*' setup.py)

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# --- the virtual environment, and uv in it: pip would take minutes where uv takes seconds
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        fail "Python 3.10 or newer is needed, '$python' is not; name another: make setup PYTHON=python3.12"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv ||
        fail "'$python' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
fi
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet 'uv>=0.8'

# uv reads none of pip's variables. pip separates by spaces and passes over folders that are not there; uv does neither.
if [ -n "${PIP_FIND_LINKS:-}" ] && [ -z "${UV_FIND_LINKS:-}" ]; then
    for link in $PIP_FIND_LINKS; do
        if [[ $link == *://* || -e $link ]]; then UV_FIND_LINKS=${UV_FIND_LINKS:+$UV_FIND_LINKS,}$link; fi
    done
fi
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi

# The toolboxes ask for opencv-python and for opencv-python-headless, which overwrite each other's files; the first does
# not import on a machine without a display library (libGL). Only the second is installed.
override=.venv/overrides.txt
echo 'opencv-python ; sys_platform == "never"' >$override
install() { .venv/bin/uv pip install --python .venv/bin/python --override $override "${torch[@]}" "$@"; }

# --- torch, before anything that compiles against it
say "installing ${torch[*]}"
install 'setuptools>=80,<82' wheel ninja

# --- mmcv with its operators
# Built by an installer, in isolation, mmcv sees no torch and comes out without its operators and without a word; and the
# caches of pip and uv do not tell the two builds apart. So: a wheel if there is one that works, else compiled here. The
# result is kept for the next environment of this user, by the versions that it is bound to.
tag=$(.venv/bin/python -c 'import sys, torch as t
print("cp%d%d-torch%s" % (*sys.version_info[:2], t.__version__) + "-gpu" * t.cuda.is_available())')
wheels=${XDG_CACHE_HOME:-~/.cache}/cpvt_backbones/$tag
mkdir -p "$wheels"
export UV_FIND_LINKS=$wheels${UV_FIND_LINKS:+,$UV_FIND_LINKS}

operators_work() { .venv/bin/python -c 'import torch, mmcv._ext' 2>.venv/operators.log; }

compile_operators() {
    local src=.venv/src/${mmcv/==/-} jobs
    jobs=${MAX_JOBS:-$(getconf _NPROCESSORS_ONLN)}
    say "no working wheel of $mmcv: compiling its operators from source, about 14 minutes on two cores (here: $jobs)"
    .venv/bin/python -c 'import os, sysconfig as s; os.stat(os.path.join(s.get_path("include"), "Python.h"))' 2>/dev/null &&
        command -v "${CXX:-c++}" >/dev/null ||
        say "(this needs a C++ compiler and Python's headers, and one is missing; Debian and Ubuntu: apt-get install g++ python3-dev)"
    if [ ! -d "$src" ]; then
        rm -rf "$src.part" && mkdir -p "$src.part"
        .venv/bin/python -m pip download --quiet --no-deps --no-build-isolation --no-binary onedl-mmcv -d "$src.part" "$mmcv"
        tar -xzf "$src.part"/*.tar.gz -C "$src.part" --strip-components 1
        mv "$src.part" "$src"
    fi

    # A sign of life for a compiler that says nothing.
    (
        while sleep 30 >/dev/null 2>&1; do
            say "compiled $(find "$src/build" -name '*.o' | wc -l) of $(cat "$src"/build/temp*/build.ninja | grep -c '\.o: compile') files"
        done
    ) &
    trap "kill $! 2>/dev/null || true" EXIT
    # Built where the source lies, so that ninja (in .venv/bin) finds what an interrupted run has done.
    PATH="$PWD/.venv/bin:$PATH" MMCV_WITH_OPS=1 CFLAGS="${CFLAGS:--g0 -w}" MAX_JOBS=$jobs \
        .venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w "$wheels" "$src" ||
        fail "mmcv's operators do not compile, see above; when that is mended, 'make setup' goes on from here"
    kill $! 2>/dev/null || true
    trap - EXIT
}

if ! operators_work; then
    say "installing $mmcv"
    install opencv-python-headless --only-binary onedl-mmcv "$mmcv" 2>/dev/null || true
    if ! operators_work; then
        compile_operators
        install opencv-python-headless --reinstall-package onedl-mmcv "$wheels/onedl_mmcv-${mmcv#*==}"-*.whl
    fi
fi

# --- the toolboxes, the package and its tools
say "installing the mm toolboxes and the package"
# Compiled here, once: where PYTHONDONTWRITEBYTECODE is set, every process would otherwise compile what it imports.
install --compile-bytecode -e '.[all,dev]'

operators_work ||
    fail "mmcv's operators do not import ($(tail -n 1 .venv/operators.log)); remove .venv and $wheels, then run 'make setup' again"
say "ready: .venv with $(.venv/bin/python -c 'import torch, mmcv; print("torch", torch.__version__, "and mmcv", mmcv.__version__, "with its operators")')"
