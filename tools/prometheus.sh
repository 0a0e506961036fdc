#!/usr/bin/env bash
# Put Debian's Prometheus and promtool into a folder, without installing them: for tests/running/export/test_deploy.py.
#
#     tools/prometheus.sh FOLDER      (then ULLAGE_PROMETHEUS=FOLDER/usr/bin)
set -euo pipefail
folder=$1
[ -x "$folder/usr/bin/promtool" ] && exit 0
mkdir -p "$folder"
cd "$folder"
apt-get download prometheus
dpkg -x prometheus_*.deb .
rm prometheus_*.deb
