#!/usr/bin/env bash
# Make the lists of CUDA's functions anew from NVIDIA's wheels: src/ullage/gpu/emulator/cuda/symbols/*.txt.
#
#     tools/symbols.sh PYTHON      # one that has pyelftools
#
# The wheels are large (about 6 GB together): each is deleted when it is read. nvidia-nvtx-cu12 12.8 is the last that has
# libnvToolsExt.
set -euo pipefail
python=$1
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for package in cuda-runtime cublas cufft curand cusolver cusparse nvjitlink cuda-nvrtc cuda-cupti cufile nvtx nvml-dev; do
  packages+=("nvidia-$package-cu12" "nvidia-$package")
done
for package in cudnn nccl nvshmem cusparselt; do packages+=("nvidia-$package-cu12" "nvidia-$package-cu13"); done
for package in "${packages[@]}" nvidia-nvtx-cu12==12.8.90; do
  "$python" -m pip download --quiet --no-deps --only-binary :all: -d "$folder" "$package"
  "$python" "$here/tools/read_symbols.py" "$folder"/*.whl
  rm "$folder"/*.whl
done
