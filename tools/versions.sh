#!/usr/bin/env bash
# Run the tests of the emulated GPU on every torch from 2.6 to the newest, and write the table of docs/versions.md.
#
#     tools/versions.sh CACHE [VERSIONS]      with VERSIONS ("2.8.0 2.15.0") the rows of the other versions stay
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cache=${1:?the folder for environments}
all="2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.0 2.13.0 2.14.0 2.15.0"
versions=${2:-$all}
tests=(tests/gpu/emulator/test_torch.py tests/gpu/emulator/test_card.py tests/predicting/prediction/test_ranks.py tests/gpu/emulator/test_compile.py)
table=$here/docs/versions.md
failed=0
python=$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
{
  echo "# Versions of PyTorch"
  echo
  "${PYTHON:-python3}" "$here/tools/stale_pages.py" --stamp "$table" ${2:+--part}
  echo
  echo "The emulator was tested with PyPI's CUDA build of each PyTorch version, on Python $python."
  echo "For each PyTorch version, the table lists the results of the test files"
  echo "${tests[*]##*/}."
  echo "For torch 2.11, 2.13 and 2.15, \`make truth\` also compares the memory of recorded workloads, to the byte."
  echo "With torch 2.6, the first step takes 256 MiB more if Inductor chooses between kernels, because Triton 3.2 allocates a"
  echo "buffer of 256 MiB to measure the kernels."
  echo
  echo "| torch | CUDA | tests |"
  echo "|---|---|---|"
} >"$table.part"
row_of() { grep -F "| $1 |" "$table" 2>/dev/null | head -1; }
for version in $all; do
  if [[ " $versions " != *" $version "* ]]; then
    row_of "$version" >>"$table.part"
    continue
  fi
  folder=$cache/torch-$version-py$python
  if ! "$here/tools/environment.sh" "$version" "$folder"; then
    echo "| $version | | the environment could not be created |" >>"$table.part"
    failed=1
    continue
  fi
  cuda=$(sed -n "s/^cuda: .*= '\(.*\)'/\1/p" "$folder"/lib/python*/site-packages/torch/version.py)
  said=$(cd "$here" && "$folder/bin/python" -m pytest -n "${JOBS:-2}" -p no:cacheprovider "${tests[@]}" 2>&1 | tee "$cache/torch-$version.log" | tail -1)
  [[ $said == *failed* || $said == *error* ]] && failed=1
  echo "torch $version: $said" >&2
  echo "| $version | $cuda | $(echo "$said" | sed -E 's/ in [0-9.]+s.*//') |" >>"$table.part"
done
mv "$table.part" "$table"
exit $failed
