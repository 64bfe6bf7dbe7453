#!/usr/bin/env bash
# Make the virtual environment VENV and install the pinned dependencies and the package into it.
#
#   scripts/setup.sh VENV STAMP        (called by the Makefile)
#
# STAMP records what was installed, by content: a changed lock makes the environment anew, a changed
# pyproject.toml reinstalls the package only, and otherwise nothing is installed again.
# Environment: PYTHON (the interpreter to use), PIP_ARGS (more arguments for pip).
set -euo pipefail

venv=$1
stamp=$2

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_recent "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3 python3.12 python3.13; do
        if is_recent "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found" "install it:  sudo apt-get install python3 python3-venv" \
        "or name one:  make PYTHON=/path/to/python3.11 ..."
}

digest() {
    sha256sum "$@" | sha256sum | cut -d' ' -f1
}

python=$(find_python)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
dependencies="$(digest requirements.lock scripts/setup.sh) $version"
package=$(digest pyproject.toml)
installed_dependencies='' installed_package=''
if [ -f "$stamp" ] && [ -x "$venv/bin/python" ]; then
    { read -r installed_dependencies && read -r installed_package; } <"$stamp" || true
fi
if [ "$installed_dependencies" = "$dependencies" ] && [ "$installed_package" = "$package" ]; then
    touch "$stamp"
    exit 0
fi

# pip's settings for this installation only: no prompts, no notices, errors still shown.
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
pip=("$venv/bin/python" -m pip install -qq --progress-bar off)
read -r -a extra <<<"${PIP_ARGS:-}"

if [ "$installed_dependencies" != "$dependencies" ]; then
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module" "install it:  sudo apt-get install python$version-venv"
    rm -f "$stamp"
    echo "setup: virtual environment in $venv (Python $version)"
    "$python" -m venv --clear "$venv"
    echo "setup: installing $(grep -c '^[A-Za-z]' requirements.lock) pinned packages (some minutes: torch and ray are large)"
    "${pip[@]}" "${extra[@]}" -r requirements.lock ||
        fail "pip could not install requirements.lock (its message is above)" \
            "behind a proxy or a mirror, set pip's own variables, e.g. PIP_INDEX_URL, or PIP_ARGS='...'"
fi
echo "setup: installing rollart"
"${pip[@]}" --no-deps --no-build-isolation -e . || fail "pip could not install the package (its message is above)"
printf '%s\n' "$dependencies" "$package" >"$stamp"
echo "setup: done"
