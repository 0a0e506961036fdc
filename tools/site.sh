#!/usr/bin/env bash
# Bring the documents up to date and build the site.
#
#     tools/site.sh ENVIRONMENT DOCS_ENVIRONMENT [--slow]
#
# ENVIRONMENT has ullage; the second is made here, and has what builds the site. The site is in build/site and needs no
# network. A warning, such as for a link that leads nowhere, is an error.
set -euo pipefail
environment=$1
site=$2
cd "$(dirname "$0")/.."

stamp="$site/.requirements"
if ! cmp -s tools/requirements-docs.txt "$stamp"; then
  echo "making $site" >&2
  rm -rf "$site"
  "${PYTHON:-python3}" -m venv "$site"
  "$site/bin/python" -m pip --quiet --disable-pip-version-check install -r tools/requirements-docs.txt
  cp tools/requirements-docs.txt "$stamp"
fi
"$environment/bin/python" tools/settings_pictures.py >/dev/null
"$environment/bin/python" tools/docs.py "${@:3}"
NO_MKDOCS_2_WARNING=1 "$site/bin/mkdocs" build --strict --quiet
# A page that asks the network for something is not what it says it is.
if grep -rEl --include='*.html' '(src|href)="https?://[^"]*\.(js|css|woff2?)"' build/site; then
  echo "these pages would fetch a script or a style" >&2
  exit 1
fi
echo "build/site/index.html"
