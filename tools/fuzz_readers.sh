#!/usr/bin/env bash
# Fuzz everything that is read of others, with new seeds: random inputs of every kind, then guided by coverage (atheris
# for Python; libFuzzer for the reader of pickles and the replay, where clang++ is there).
#
#     tools/fuzz_readers.sh ENVIRONMENT MINUTES
set -euo pipefail
environment=$1
seconds=$(($2 * 60))
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here"
failed=0

"$environment/bin/python" -m tests.fuzzing --minutes "$(awk "BEGIN {print $seconds / 120}")" || failed=1

guided=$environment-atheris
if [ ! -e "$guided/atheris" ]; then
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$guided" 'atheris==3.0.0'
fi
readers=(text packed packed-text json page timeline notebook live run-folder settings card)
for reader in "${readers[@]}"; do
  echo "guided by coverage: $reader"
  PYTHONPATH=$guided "$environment/bin/python" -m tests.fuzzing.guided "$reader" \
    "-max_total_time=$((seconds / 4 / ${#readers[@]} + 1))" -timeout=300 -rss_limit_mb=4096 -print_final_stats=0 \
    -artifact_prefix=fuzz-findings- 2>&1 | grep -vE '^(INFO|#[0-9]+[[:space:]]+(NEW|REDUCE|RELOAD|pulse))' || failed=1
done

if ! command -v clang++ >/dev/null; then
  echo "the reader of pickles and the replay are not fuzzed by libFuzzer: clang++ is not here (Debian: apt-get install clang)" >&2
  exit $failed
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/pickle_machine" "$folder/replay_machine"
for file in tests/fuzzing/corpus/*.pickle.gz; do
  gzip -dc "$file" >"$folder/pickle_machine/$(basename "$file" .gz)"
done
core=src/ullage
pickles=("$core"/recorded/snapshot/_core/{pickle,shapes}.cpp)
replays=("$core"/recorded/allocator/_core/{settings,address_space,driver,allocator,allocate,release,expandable,streams,replay}.cpp)

# Build a target of its sources, and run it for an eighth of the time.
guided() {
  local target=$1
  shift
  clang++ -std=c++17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -I"$core/recorded/snapshot/_core" -I"$core/recorded/allocator/_core" "$@" "tests/fuzzing/$target.cpp" -o "$folder/$target.run"
  echo "guided by coverage: $target"
  "$folder/$target.run" -max_total_time=$((seconds / 8 + 1)) -max_len=100000 -timeout=60 -rss_limit_mb=4096 \
    -artifact_prefix=fuzz-findings- -print_final_stats=1 "$folder/$target" 2>&1 |
    grep -vE '^(INFO|#[0-9]+[[:space:]]+(NEW|REDUCE|RELOAD|pulse))|NEW_FUNC|# Uses:|^######' || failed=1
}
guided pickle_machine "${pickles[@]}"
guided replay_machine "${replays[@]}"
exit $failed
