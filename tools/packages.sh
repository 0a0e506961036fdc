#!/usr/bin/env bash
# Put the packages that the public scripts import into a folder for PYTHONPATH.
#
#     tools/packages.sh ENVIRONMENT FOLDER REQUIREMENTS
#
# REQUIREMENTS holds requirements.txt, installed with what it requires, and requirements-beside-torch.txt, without.
set -euo pipefail
environment=$1
folder=$2
requirements=$3
pip() { env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null "$environment/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

state=$(cat "$requirements"/requirements*.txt | sha256sum)
[ "$(cat "$folder/.ready" 2>/dev/null)" = "$state" ] && exit 0
rm -rf "$folder"
pip install --target "$folder" -r "$requirements/requirements.txt"
pip install --target "$folder" --no-deps -r "$requirements/requirements-beside-torch.txt"
echo "$state" >"$folder/.ready"
