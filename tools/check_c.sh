#!/usr/bin/env bash
# Compile the C and C++ code with warnings as errors.
#
#     tools/check_c.sh [PYTHON]      PYTHON has nanobind; it is compiled for that one
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${1:-$(command -v python3)}
cmake -S "$here" -B "$folder" -DULLAGE_WERROR=ON "-DPython_EXECUTABLE=$python" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
cmake --build "$folder" --parallel 2 >"$folder/log" 2>&1 || { grep -E 'error|warning' "$folder/log" >&2; exit 1; }
echo "C and C++: no warnings"
