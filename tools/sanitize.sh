#!/usr/bin/env bash
# Build the allocator core alone, without Python, with the address and undefined-behaviour sanitizers, and run random programs.
#
#     tools/sanitize.sh [SEED [PROGRAMS]]
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
core=$here/src/ullage/recorded/allocator/_core
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sources=("$core"/{settings,address_space,driver,allocator,allocate,release,expandable,streams,replay}.cpp "$here/tests/recorded/allocator/fuzz.cpp")
"${CXX:-c++}" -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
  -D_GLIBCXX_ASSERTIONS -I"$core" "${sources[@]}" -o "$folder/fuzz"
"$folder/fuzz" "$@"
