#!/usr/bin/env bash
# Make (or bring up to date) a virtual environment with one version of torch and the project installed.
#
#     tools/environment.sh 2.11.0 FOLDER
#
# torch is PyPI's CUDA build, installed without the nvidia-* wheels: the emulator stands in for them. A configured
# folder of local wheels is left out, because it may hold a CPU build of the same version.
set -euo pipefail
version=$1
folder=$2
here=$(cd "$(dirname "$0")/.." && pwd)

# What torch needs beside CUDA, and what the recorded workloads were made with.
declare -A torchvision=([2.11.0]=0.26.0 [2.13.0]=0.28.0)
common=(filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec numpy setuptools pillow
  nvidia-cuda-runtime) # one of NVIDIA's wheels, to show that it stays out
hugging_face=(transformers==4.57.1 'huggingface-hub>=0.34,<1' 'tokenizers>=0.22,<0.23' safetensors regex requests tqdm
  pyyaml packaging certifi charset-normalizer idna urllib3)

pip() { env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null "$folder/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9 # two runs at once make one environment
stamp="$folder/.torch-ready-3"
if [ ! -e "$stamp" ]; then
  echo "making $folder (torch $version, about two minutes)" >&2
  rm -rf "$folder"
  "${PYTHON:-python3}" -m venv "$folder"
  pip install --no-deps "torch==$version"
  triton=$("$folder/bin/python" -c 'import importlib.metadata as m; print(next(r.split(";")[0].strip() for r in m.requires("torch") if r.startswith("triton")))')
  packages=("$triton" "${common[@]}")
  [ -n "${torchvision[$version]:-}" ] && packages+=("torchvision==${torchvision[$version]}" "${hugging_face[@]}")
  pip install --no-deps "${packages[@]}"
  touch "$stamp"
fi
# What ullage.Guard is tested with, where transformers is.
frameworks=(accelerate==1.15.0 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0)
if [ "$version" = 2.11.0 ] && [ "$(cat "$folder/.frameworks" 2>/dev/null)" != "${frameworks[*]}" ]; then
  pip install --no-deps "${frameworks[@]}"
  echo "${frameworks[*]}" >"$folder/.frameworks"
fi
tools=('pytest>=8' pytest-xdist 'hypothesis>=6.100' psutil ruff mypy basedpyright import-linter typer rich plotly jinja2 cloudpickle 'nvidia-ml-py>=12.560' 'ipython>=8' 'textual>=1'
  'prometheus-client>=0.20' 'pyarrow>=15' 'tensorboard>=2.15'
  'opentelemetry-exporter-otlp-proto-http>=1.30' 'promql-parser>=0.5'
  scikit-build-core nanobind cmake ninja clang-format==23.1.5)
if [ "$(cat "$folder/.tools" 2>/dev/null)" != "${tools[*]}" ]; then
  pip install "${tools[@]}"
  echo "${tools[*]}" >"$folder/.tools"
fi
# The project is installed as a user gets it: a wheel. It is built again when a file has changed, once for all
# environments of one Python that lie side by side: no torch is asked for in the build.
state=$("$here/tools/state.sh")
if [ "$(cat "$folder/.project" 2>/dev/null)" != "$state" ]; then
  wheels=$(dirname "$folder")/wheels/$("$folder/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  mkdir -p "$wheels"
  exec 8>"$wheels.lock"
  flock 8
  if [ "$(cat "$wheels/.state" 2>/dev/null)" != "$state" ]; then
    rm -rf "$wheels"/*.whl "$wheels/.state"
    # The build stays, outside the tree: where Python alone was changed nothing is compiled.
    pip wheel --no-deps --no-build-isolation "--config-settings=build-dir=$wheels/build" --wheel-dir "$wheels" "$here"
    echo "$state" >"$wheels/.state"
  fi
  pip install --no-deps --force-reinstall "$wheels"/*.whl
  flock --unlock 8
  echo "$state" >"$folder/.project"
fi
