#!/usr/bin/env bash
# Makes .venv with the tested torch, the mm toolboxes, the package itself (editable) and its test tools.
#   tools/setup_env.sh [PYTHON]                        (default python3; 3.10 or newer)
#   OPERATORS=compiled tools/setup_env.sh [PYTHON]     compiles mmcv's operators; without, torchvision's stand in for them
# Safe to interrupt and to run again: it goes on from where it was. For other versions and folders:
#   CPVT_VENV=~/venv CPVT_TORCH='torch==2.8.0 torchvision==0.23.0' tools/setup_env.sh
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
venv=${CPVT_VENV:-.venv}
read -ra torch <<<"${CPVT_TORCH:-torch==2.11.0 torchvision==0.26.0}"
mmcv=$(grep -o 'onedl-mmcv==[0-9.]*' setup.py)
log=$venv/setup.log

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
case ${OPERATORS:=torchvision} in torchvision | compiled) ;; *) fail "OPERATORS must be torchvision or compiled, got '$OPERATORS'" ;; esac

# Shows lines until the first of an error, and writes this and all further ones to the log.
show_or_log() {
    local line bad=
    while IFS= read -r line || [ -n "$line" ]; do
        if [[ $line =~ ^\ *(error|ERROR|WARNING|×) ]]; then bad=1; fi
        if [ "$bad" ]; then printf '%s\n' "$line" >>"$log"; else printf '%s\n' "$line"; fi
    done
}

# Runs a command that needs the network; shows each line at once, then its errors, or one line if what is missing is the
# network. Not by awk: mawk, that of Debian, waits for 4096 bytes of input.
online() {
    : >"$log"
    { "$@" 2>&1 >&3 | show_or_log >&2; } 3>&1 && return
    if grep -qiE 'connect|dns error|name resolution|unreachable|timed out' "$log"; then
        fail "no network, or no package index behind it; run 'make setup' again when there is"
    fi
    cat "$log" >&2
    fail "'$1' failed, see above; when that is mended, 'make setup' goes on from here"
}

# --- the virtual environment, and uv in it: pip would take minutes where uv takes seconds
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        fail "Python 3.10 or newer is needed, '$python' is not; name another: make setup PYTHON=python3.12"
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" ||
        fail "'$python' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
fi
: >"$log"
if ! "$venv/bin/uv" --version >/dev/null 2>&1; then
    say 'installing uv'
    online "$venv/bin/python" -m pip install --quiet --retries 1 --force-reinstall 'uv>=0.8'
fi

# uv reads none of pip's variables. pip separates by spaces and passes over folders that are not there; uv does neither.
for link in ${PIP_FIND_LINKS:-}; do
    if [[ $link == *://* || -e $link ]]; then export UV_FIND_LINKS=${UV_FIND_LINKS:+$UV_FIND_LINKS,}$link; fi
done
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi

# --- everything, from binary packages; mmcv is built without its operators, as no torch is in sight of an isolated build
# The toolboxes ask for opencv-python and for opencv-python-headless, which overwrite each other's files; the first does
# not import on a machine without a display library (libGL). Only the second is installed.
# Gradio excludes the newest Pillow, with which everything here is tested, the page too.
printf '%s\n' 'opencv-python ; sys_platform == "never"' pillow >"$venv/overrides.txt"
install() { online "$venv/bin/uv" pip install --python "$venv/bin/python" --override "$venv/overrides.txt" "${torch[@]}" "$@"; }

say "installing ${torch[*]}, the mm toolboxes and the package: minutes, with a line a step"
# What an interrupted run has left half installed looks installed to uv.
again=()
if [ -e "$venv/.installing" ]; then again=(--reinstall); fi
touch "$venv/.installing"
# Byte code is compiled here, once: where PYTHONDONTWRITEBYTECODE is set, every process would compile what it imports.
export UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1}
install ${again[@]+"${again[@]}"} -e '.[all,dev]'
rm "$venv/.installing"

# --- mmcv's operators: 'compiled', 'torchvision', or nothing if a wheel for another torch was found
operators() {
    "$venv/bin/python" -c 'import importlib.util as u, torch; found = u.find_spec("mmcv._ext")
if found: import mmcv._ext
print("compiled" if found else "torchvision")' 2>/dev/null || true
}
if [ "$OPERATORS" = compiled ] && [ "$(operators)" != compiled ]; then
    CPVT_VENV=$venv tools/compile_operators.sh "$mmcv" || fail "mmcv's operators were not compiled, see above"
elif [ -z "$(operators)" ]; then
    say "the wheel of $mmcv that was found does not fit ${torch[0]}: installing it without its operators"
    install --reinstall-package onedl-mmcv --no-binary onedl-mmcv "$mmcv"
fi
say "ready: $venv with $("$venv/bin/python" -c 'import torch, mmcv; print("torch", torch.__version__, "and mmcv", mmcv.__version__)'), operators: $(operators)"
say "in each new shell: source $venv/bin/activate"
