#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# pack.sh WORK ARCHIVE: makes the cpio archive that a guest starts with. In WORK lie
#   files         lines HOST, tab, GUEST: files and directories of this machine
#   modules       lines FILE, tab, PARAMETERS: kernel modules in the order in which they go in
#   vm/           what is ours, /init among it
# Not compressed: QEMU copies it into the guest's memory faster than TCG could unpack it.
set -eu
umask 022
work=$1
archive=$2
root=$work/root
tab=$(printf '\t')

# Debian's merged /usr: a program and its loader find each other by either name.
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$root/vm/modules"
for name in bin sbin lib lib64; do ln -s usr/$name "$root/$name"; done
(cd "$root" && mkdir dev etc home proc root run sys tmp var)

refuse() {
	echo "$*" >&2
	exit 1
}
place() { # GUEST: makes the directory for it and says where that is
	case $1 in
	*/../* | */..) refuse "guest path $1 must not contain .." ;;
	/proc/* | /sys/* | /dev/* | /run/* | /tmp/*)
		refuse "$1 would be hidden: the guest mounts a file system there" ;;
	/?*) ;;
	*) refuse "guest path $1 is not absolute" ;;
	esac
	directory=$(dirname "$root$1")
	# A link in what was brought must not lead to this machine's own files.
	case $(realpath -m "$directory")/ in
	"$root"/*) ;;
	*) refuse "$1 leads out of the guest by a link" ;;
	esac
	mkdir -p "$directory"
}
: >"$work/programs"
bring() { # HOST GUEST
	place "$2"
	[ -e "$1" ] || refuse "$1 is not there"
	if [ -d "$1" ]; then
		place "$2/x"
		cp -R --preserve=mode,links "$1/." "$root$2"
		find "$1" -type f -size +1k >>"$work/programs"
	else
		[ ! -d "$root$2" ] || refuse "$2 is a directory in the guest"
		cp -L --remove-destination --preserve=mode "$1" "$root$2"
		echo "$1" >>"$work/programs"
	fi
}
while IFS=$tab read -r host guest; do bring "$host" "$guest"; done <"$work/files"
[ -e "$root/usr/bin/busybox" ] || bring "$(command -v busybox)" /usr/bin/busybox

# What a program opens by itself while it runs (plugins, libgcc_s for thread cancellation) ldd cannot know.
# Of what is no program, or linked statically, ldd says so; that is no error.
tr '\n' '\0' <"$work/programs" | LC_ALL=C xargs -0r ldd >"$work/libraries" 2>/dev/null || :
if missing=$(grep -m1 'not found' "$work/libraries"); then
	refuse "a library is not on this machine:$missing"
fi
sed -n 's/^\t\(.* => \)\{0,1\}\(\/[^ ]*\) (0x.*/\2/p' "$work/libraries" | sort -u | while read -r library; do
	library=$(realpath -sm "$library")
	[ -e "$root$library" ] || bring "$library" "$library"
done

while IFS=$tab read -r file parameters; do
	name=$(basename "$file" | sed 's/\.ko.*//; y/-/_/')
	case $file in
	*.xz) xz -dc "$file" ;;
	*.zst) zstd -qdc "$file" ;;
	*.gz) gzip -dc "$file" ;;
	*) cat "$file" ;;
	esac >"$root/vm/modules/$name.ko"
	echo "$name $parameters" >>"$root/vm/modules.list"
done <"$work/modules"
cp -R "$work/vm/." "$root/vm"
mv "$root/vm/init" "$root/init"
chmod 755 "$root/init"

(cd "$root" && find . -mindepth 1 -print0 | cpio -o -H newc -0 --quiet -R +0:+0) >"$archive"
rm -r "$root"
