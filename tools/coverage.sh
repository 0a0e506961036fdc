#!/usr/bin/env bash
# Run the suite with branch coverage of src/ullage, in the processes that tests start too, and write build/coverage.md.
#
#     tools/coverage.sh ENVIRONMENT FOLDER JOBS [TESTS...]
#
# ENVIRONMENT is the suite's own. FOLDER becomes an environment on top of it that has coverage.py, and what is measured.
# What to measure is in pyproject.toml. The page names tests that fail, and they do not end this: Python's tracing keeps
# variables of frames alive and takes processor time, and some tests are about just that.
set -euo pipefail
environment=$1
folder=$2
jobs=$3
tests=("${@:4}")
[ ${#tests[@]} = 0 ] && tests=(tests)
cd "$(dirname "$0")/.."
wanted="coverage==7.17.3 on $environment"

if [ "$(cat "$folder/.ready" 2>/dev/null)" != "$wanted" ]; then
  echo "making $folder" >&2
  rm -rf "$folder"
  "${PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/python" -m pip --quiet --disable-pip-version-check install "${wanted%% *}"
  echo "$environment"/lib/python*/site-packages >"$(echo "$folder"/lib/python*/site-packages)/base.pth"
  for command in torchrun accelerate; do # what tests start beside their Python
    sed "1s|.*|#!$folder/bin/python|" "$environment/bin/$command" >"$folder/bin/$command"
    chmod +x "$folder/bin/$command"
  done
  ln -sfn "$environment-cudnn" "$folder-cudnn"
  echo "$wanted" >"$folder/.ready"
fi

export COVERAGE_FILE=$folder/measured/data PATH="$folder/bin:$environment/bin:$PATH"
rm -rf "$folder/measured"
mkdir "$folder/measured"
status=0
python -m coverage run -m pytest -n "$jobs" --dist worksteal --all-turns --junitxml "$folder/tests.xml" "${tests[@]}" || status=$?
[ $status -le 1 ] || exit $status # interrupted, or no tests at all
python -m coverage combine --quiet
python -m coverage json --quiet -o "$folder/coverage.json"
python tools/coverage_page.py "$folder/coverage.json" "$folder/tests.xml" "${tests[*]}" "$(git describe --always --dirty)" \
  --write build/coverage.md
