#!/usr/bin/env bash
# Run `make test` as on a machine that has never seen the project: a fresh clone of the committed state,
# an empty HOME and an empty environment. Maintainers run it before a release.
#
#   scripts/clean_machine_check.sh [MAKE_TARGET...]      (default: test)
#
# Environment: PYTHON_DIR, the folder of the Python to use (default: that of python3 on /usr/bin:/bin).
# Only pip's own variables, proxies and certificates pass through: the way to the packages is not tested.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git clone -q --no-local "$repo" "$work/clone"
mkdir "$work/home"

passed=()
while IFS= read -r name; do
    passed+=("$name=${!name}")
done < <(compgen -e | grep -E '^(PIP_.*|SSL_CERT_FILE|SSL_CERT_DIR|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY)$' || true)

cd "$work/clone"
echo "clean_machine_check: $(git log -1 --format='%h %s')"
env -i HOME="$work/home" PATH="/usr/bin:/bin${PYTHON_DIR:+:$PYTHON_DIR}" LANG=C.UTF-8 CI=true \
    "${passed[@]}" make "${@:-test}" </dev/null
left=$(git status --porcelain)
if [ -n "$left" ]; then
    printf 'clean_machine_check: make left files behind that git does not ignore:\n%s\n' "$left" >&2
    exit 1
fi
echo "clean_machine_check: passed"
