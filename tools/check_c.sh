#!/usr/bin/env bash
# Compile the C and C++ code (but for the bindings) with warnings as errors.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake -S "$here" -B "$folder" -DULLAGE_CHECK=ON >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
cmake --build "$folder" --parallel 2 >"$folder/log" 2>&1 || { grep -E 'error|warning' "$folder/log" >&2; exit 1; }
echo "C and C++: no warnings"
