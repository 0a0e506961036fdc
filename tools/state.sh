#!/usr/bin/env bash
# Print one line that is another when a file that the package is built of has changed, has come or has gone.
#
#     tools/state.sh
#
# Files that git ignores do not count, and one that was deleted and is still in git's index is gone.
set -euo pipefail
cd "$(dirname "$0")/.."
sources=(CMakeLists.txt pyproject.toml src)
list() {
  git ls-files --cached --others --exclude-standard -- "${sources[@]}" 2>/dev/null ||
    find "${sources[@]}" -type f -not -name '*.so*' -not -name '*.pyc' # not a clone: an unpacked sdist
}
list | LC_ALL=C sort -u | while IFS= read -r file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done | xargs -0 sha256sum | sha256sum
