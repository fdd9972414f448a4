#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# image.sh SUITE MODULES APT_DIR: makes a whole Debian with a kernel's modules in the current directory: made/disk, and
# made/key, which all users accept.
set -eu
suite=$1 modules=$2 apt_dir=$3
here=$(dirname "$0")
[ "$(id -u)" = 0 ] || {
	echo "a Debian is made by root only" >&2
	exit 1
}

# What an administrator's Debian has; each by a name that both releases know.
packages=$(echo systemd-sysv dbus dbus-user-session libpam-systemd udev kmod openssh-server cron at exim4-daemon-light \
	sudo tmux procps psmisc iproute2 less man-db bash-completion python3-minimal python3-apt ansible-core e2fsprogs \
	crun podman uidmap fuse-overlayfs libelf1 zlib1g ca-certificates | tr ' ' ,)

mkdir made
ssh-keygen -q -t ed25519 -N '' -f made/key
mv made/key.pub key.pub
cp -a "$modules" modules
sh "$here/../bootstrap.sh" "$apt_dir" amd64 "$suite" "$packages" --variant=minbase \
	'--dpkgopt=path-exclude=/usr/share/doc/*' '--dpkgopt=path-exclude=/usr/share/locale/*' \
	"--customize-hook=sh '$here/customize.sh' '$PWD' $suite \"\$1\"" "$suite" "$PWD/root"
truncate -s 3G made/disk
mke2fs -q -F -t ext4 -O ^has_journal -d root made/disk
