#!/usr/bin/env bash
# Put NVIDIA's cuDNN and NVRTC, in the versions that an environment's torch asks for, into a folder of their own.
#
#     tools/cudnn.sh ENVIRONMENT FOLDER
#
# The environments hold torch without them, and the tests need both: a machine with cuDNN and one without. About 700 MiB,
# no card and no driver needed; `ULLAGE_CUDNN=FOLDER` has the emulated card ask it.
set -euo pipefail
python=$1/bin/python
folder=$2

wanted=$("$python" -c 'from ullage.gpu.emulator.torch_build import find_torch; print("\n".join(find_torch().planning))')

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9 # two runs at once fetch it once
[ "$(cat "$folder/.wanted" 2>/dev/null)" = "$wanted" ] && exit
echo "making $folder (" $wanted ")" >&2
rm -rf "$folder"
mapfile -t packages <<<"$wanted"
env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null "$python" -m pip --quiet --disable-pip-version-check \
  install --no-deps --no-compile --target "$folder" "${packages[@]}"
echo "$wanted" >"$folder/.wanted"
