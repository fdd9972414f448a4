#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# fetch.sh: here lies root.tar, a kernel's packages unpacked. Leaves vmlinuz, config and lib/modules, and in
# kernel.toml what they are. Suites put the same files in different places.
set -eu
mkdir root lib
tar --no-same-owner -C root -xf root.tar
rm root.tar
for modules in root/usr/lib/modules root/lib/modules; do
	[ ! -d $modules ] || [ -e lib/modules ] || mv $modules lib/modules
done
release=$(ls lib/modules)
for name in vmlinuz config; do
	for file in "root/boot/$name-$release" "lib/modules/$release/$name"; do
		[ ! -f "$file" ] || mv "$file" $name
	done
	[ -f $name ] || {
		echo "the packages hold no $name" >&2
		exit 1
	}
done
PATH=$PATH:/usr/sbin:/sbin depmod -b . "$release"
# apt-cache madison: linux-image-amd64 | 6.12.118-1 | ADDRESS trixie-security/main amd64 Packages
version=$(sed -n '1s/ //gp' root/versions | cut -d'|' -f2)
archive_suite=$(sed -n '1s/.* \([^ /]*\)\/main .*/\1/p' root/versions)
[ -n "$version" ] && [ -n "$archive_suite" ]
printf 'archive_suite = "%s"\nrelease = "%s"\nversion = "%s"\n' "$archive_suite" "$release" "$version" >kernel.toml
rm -r root
