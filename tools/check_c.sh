#!/usr/bin/env bash
# Check the C and C++ code: its form (.clang-format), and that it compiles without warnings (but for the bindings).
#
#     tools/check_c.sh ENVIRONMENT     ENVIRONMENT has clang-format
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
environment=$1
cd "$here"
find src -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' | xargs "$environment/bin/clang-format" --dry-run -Werror
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake -S "$here" -B "$folder" -DULLAGE_CHECK=ON >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
cmake --build "$folder" --parallel 2 >"$folder/log" 2>&1 || { grep -E 'error|warning' "$folder/log" >&2; exit 1; }
echo "C and C++: no warnings"
