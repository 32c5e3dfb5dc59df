#!/usr/bin/env bash
# Compiles mmcv with its operators against the torch of an environment, and installs it there: make setup OPERATORS=compiled
#   CPVT_VENV=.venv tools/compile_operators.sh onedl-mmcv==VERSION
# Needs a C++ compiler, and nvcc for a GPU; about 14 minutes on two cores. Safe to interrupt and to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

mmcv=$1
venv=${CPVT_VENV:-.venv}
python=$venv/bin/python
jobs=${MAX_JOBS:-$(getconf _NPROCESSORS_ONLN)}
src=$venv/src/${mmcv/==/-}
say() { printf '[setup] %s\n' "$*" >&2; }

# The result is kept for the next environment of this user, by the versions that it is bound to.
tag=$("$python" -c 'import sys, torch as t
print("cp%d%d-torch%s" % (*sys.version_info[:2], t.__version__) + "-gpu" * t.cuda.is_available())')
wheels=${XDG_CACHE_HOME:-~/.cache}/cpvt_backbones/$tag
mkdir -p "$wheels"

wheel() { ls "$wheels/onedl_mmcv-${mmcv#*==}"-*.whl 2>/dev/null; }
if ! wheel >/dev/null; then
    say "compiling the operators of $mmcv, about 14 minutes on two cores (here: $jobs)"
    "$python" -c 'import os, sysconfig as s; os.stat(os.path.join(s.get_path("include"), "Python.h"))' 2>/dev/null &&
        command -v "${CXX:-c++}" >/dev/null ||
        say "(this needs a C++ compiler and Python's headers, and one is missing; Debian and Ubuntu: apt-get install g++ python3-dev)"
    "$venv/bin/uv" pip install --quiet --python "$python" 'setuptools>=80,<82' wheel ninja packaging
    if [ ! -d "$src" ]; then
        rm -rf "$src.part" && mkdir -p "$src.part"
        "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary onedl-mmcv -d "$src.part" "$mmcv"
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
    # Built where the source lies, so that ninja (in the environment) finds what an interrupted run has done.
    PATH="$PWD/$venv/bin:$PATH" CFLAGS="${CFLAGS:--g0 -w}" MAX_JOBS=$jobs \
        "$python" -m pip wheel --quiet --no-deps --no-build-isolation -w "$wheels" "$src"
fi
"$venv/bin/uv" pip install --python "$python" --no-deps --reinstall-package onedl-mmcv "$(wheel)"
"$python" -c 'import torch, mmcv._ext'
