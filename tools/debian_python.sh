#!/usr/bin/env bash
# Unpack a Python of Debian's testing packages into a folder, for a version that this system does not have.
#
#     tools/debian_python.sh 3.14 FOLDER PATCHELF
#
# Nothing is installed, and no rights are needed. apt checks the packages as always; their Python is told to use the C
# library that comes with it, which is newer than the system's. FOLDER/usr/bin/python3.14 is what there is then.
set -euo pipefail
version=$1
folder=$2
patchelf=$3
program=$folder/usr/bin/python$version
[ -x "$program" ] && exit

fail() { echo "$1" >&2; exit 1; }
command -v apt-get >/dev/null || fail "this system has no Debian packages"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" {print $2; exit}')
[ -n "$mirror" ] || fail "this system's packages are not Debian's"

apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
touch "$apt/status" # nothing is installed: the C library is fetched, too
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror testing main" >"$apt/sources.list"
cat >"$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
Dir::State "$apt"; Dir::State::status "$apt/status"; Dir::Cache "$apt/cache"; APT::Sandbox::User "";
APT::Install-Recommends "false"; Acquire::Languages "none";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get --quiet --quiet update >"$apt/log" 2>&1 || fail "apt-get update: $(tail -1 "$apt/log")"
apt-get --quiet --yes --no-install-recommends --download-only -o Debug::NoLocking=1 install "python$version" libstdc++6 >"$apt/log" 2>&1 ||
  fail "apt-get install python$version: $(tail -1 "$apt/log")"

rm -rf "$folder.new"
mkdir -p "$folder.new"
for package in "$apt"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$folder.new"; done
libraries=$(dirname "$(find "$folder.new/usr/lib" -name 'libc.so.6' | head -1)")
rm -rf "$folder"
mv "$folder.new" "$folder"
libraries=${libraries/#"$folder.new"/"$folder"}
"$patchelf" --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$program"
