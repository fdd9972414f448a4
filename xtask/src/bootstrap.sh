#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# bootstrap.sh APT_DIR ARCHITECTURES SUITE[,SUITE …] PACKAGE[,PACKAGE …] ARGUMENT …: runs mmdebstrap with these
# arguments, from where this machine gets its packages: the entries of APT_DIR that serve Debian, turned towards
# other suites. Proxy, credentials and options are the machine's; Debian's archive keys verify all. The machine's own
# package lists stay untouched. debian.sources and apt.conf are left in the current directory.
set -eu
apt_dir=$1 architectures=$2 suites=$(echo "$3" | tr , ' ') packages=$4
shift 4
export LC_ALL=C.UTF-8

# .pgp is the newer name.
for end in pgp gpg; do
	keyring=/usr/share/keyrings/debian-archive-keyring.$end
	[ ! -e "$keyring" ] || break
done

entries() { # FILTER …: the address and the suite of each entry
	apt-get -o Dir::Etc="$apt_dir" indextargets --format "\$(REPO_URI) \$(RELEASE)" "Created-By: Packages" \
		"Component: main" "$@"
}
# What SUITE has for a pocket of this machine's release. Unstable and backports have one pocket only; third parties'
# names (bookworm-pgdg) are none of Debian's.
pocket() { # OWN SUITE
	case $1/$2 in
	*-*/sid | *-*/*-backports) ;;
	*-updates/*) echo "$2-updates" ;;
	*-security/*) echo "$2-security" ;;
	*-*/*) ;;
	*) echo "$2" ;;
	esac
}
# Debian's own say so where apt has their lists; without lists the customary path tells.
{
	entries "Origin: Debian"
	entries --no-release-info | grep -E "/debian(-security)?/ " | grep -v "^cdrom:"
} | sort -u | while read -r uri own; do
	for suite in $suites; do
		suite=$(pocket "$own" "$suite")
		[ -z "$suite" ] || cat <<-END
			Types: deb
			URIs: $uri
			Suites: $suite
			Components: main
			Architectures: $(echo "$architectures" | tr , ' ')
			Signed-By: $keyring

		END
	done
done >debian.sources
[ -s debian.sources ] || {
	echo "no apt source in $apt_dir serves Debian itself; name another directory like /etc/apt with --apt-dir" >&2
	exit 1
}
# A mirror that is behind is good enough for guests.
{
	apt-config dump Acquire | grep -v -e ::Languages -e ::IndexTargets
	printf '%s;\n' 'Acquire::Languages "none"' 'Acquire::Retries "3"' 'Acquire::Check-Valid-Until "false"' \
		'APT::Install-Recommends "false"'
} >apt.conf
# shellcheck disable=SC2016 # mmdebstrap's shell expands it
mmdebstrap "--include=$packages" "--architectures=$architectures" "--aptopt=$PWD/apt.conf" \
	'--setup-hook=mkdir -p "$1/etc/apt"; cp -a /etc/apt/auth.conf* "$1/etc/apt" || :' \
	"$@" "$PWD/debian.sources" 2>said || {
	grep -v '^I: ' said >&2
	! grep -q -e NO_PUBKEY -e "Missing key" -e "is not signed" said || echo "install a newer debian-archive-keyring" >&2
	exit 1
}
