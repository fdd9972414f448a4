#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Process 1 of a bare guest. It tells the host over virtio ports (vm/guest.rs is the other end):
#   bursar.out, bursar.err   TOKEN ready, what the command prints; on bursar.out then TOKEN exit STATUS
#   bursar.files             a tar archive: 0, the kernel log; 1, 2 …, the files asked for
# Nothing of this uses the first serial port: that is the kernel's console.

/usr/bin/busybox --install -s /usr/bin 2>/dev/null # where nothing else has the name
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /vm/settings # TOKEN BPFFS TRACEFS

mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o mode=0755,nosuid devtmpfs /dev
exec </dev/console >/dev/console 2>&1

fail() {
	echo "bursar-vm: $*"
	poweroff -f
	sleep 60
}

mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=0620,gid=5,ptmxmode=0666 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /tmp
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
mount -t securityfs -o nosuid,nodev,noexec securityfs /sys/kernel/security
[ "$BPFFS" = 1 ] && mount -t bpf -o mode=0700,nosuid,nodev,noexec bpf /sys/fs/bpf
[ "$TRACEFS" = 1 ] && mount -t tracefs -o nosuid,nodev,noexec tracefs /sys/kernel/tracing
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
ln -sf /proc/mounts /etc/mtab
mkdir -p /run/lock /run/user /var/lib /var/log /var/tmp
chmod 0755 / # the archive has no entry for it
chmod 1777 /var/tmp
chmod 0700 /root
ln -sf /run /var/run
hostname bursar-vm
ip link set lo up
ulimit -Hn 524288
ulimit -Sn 1024

# Throw-away users, each with a group of the same number, the first half also in the group crew.
{
	echo root:x:0:0:root:/root:/bin/sh
	echo daemon:x:1:1:daemon:/:/bin/false
	echo nobody:x:65534:65534:nobody:/:/bin/false
} >/etc/passwd
{
	echo root:x:0:
	echo daemon:x:1:
	echo tty:x:5:
	echo nogroup:x:65534:
	echo crew:x:60100:u60000,u60001,u60002,u60003,u60004
} >/etc/group
for uid in 60000 60001 60002 60003 60004 60005 60006 60007 60008 60009; do
	echo "u$uid:x:$uid:$uid:guest user:/home/u$uid:/bin/sh" >>/etc/passwd
	echo "u$uid:x:$uid:" >>/etc/group
	mkdir -p "/home/u$uid" && chown "$uid:$uid" "/home/u$uid" && chmod 0700 "/home/u$uid"
done
for database in passwd group shadow hosts; do echo "$database: files"; done >/etc/nsswitch.conf
echo "127.0.0.1 localhost bursar-vm" >/etc/hosts
echo /bin/sh >/etc/shells
echo "export PS1='bursar-vm \\w # '" >/etc/profile
# Debian's own values, but for UID_MAX, so that the throw-away users are ordinary ones.
{
	echo UID_MIN 1000
	echo UID_MAX 60999
	echo SYS_UID_MIN 100
	echo SYS_UID_MAX 999
	echo GID_MIN 1000
	echo GID_MAX 60999
} >/etc/login.defs

while read -r module parameters; do
	# shellcheck disable=SC2086 # parameters are words
	insmod "/vm/modules/$module.ko" $parameters || fail "cannot insert module $module"
done </vm/modules.list

cd /root || fail "no /root"

if [ -z "$TOKEN" ]; then
	setsid -c /bin/sh /vm/command </dev/ttyS1 >/dev/ttyS1 2>&1
	poweroff -f
fi

port() { # NAME: its device
	tries=0
	while [ $tries -lt 200 ]; do
		for port in /sys/class/virtio-ports/*; do
			[ "$(cat "$port/name" 2>/dev/null)" = "bursar.$1" ] && [ -c "/dev/${port##*/}" ] && {
				echo "/dev/${port##*/}"
				return
			}
		done
		tries=$((tries + 1))
		sleep 0.05
	done
	return 1
}
out=$(port out) && err=$(port err) && files=$(port files) || fail "no virtio ports"

# Pipes, as under any CI: a port is no terminal and can be opened only once, and what the command
# leaves running must not hold it. The readers must outlive a guest that is short of memory.
mkfifo /vm/stdout /vm/stderr
(echo "$TOKEN ready"; exec cat) </vm/stdout >"$out" &
reads_out=$!
(echo "$TOKEN ready"; exec cat) </vm/stderr >"$err" &
reads_err=$!
echo -1000 >/proc/$reads_out/oom_score_adj
echo -1000 >/proc/$reads_err/oom_score_adj
setsid /bin/sh /vm/command </dev/null >/vm/stdout 2>/vm/stderr
status=$?

# What the command left behind holds the pipes; a guest ends with its command.
tries=0
while [ $tries -lt 50 ]; do
	left=0
	for process in /proc/[0-9]*; do
		process=${process#/proc/}
		case $process in 1 | "$reads_out" | "$reads_err") continue ;; esac
		[ -e "/proc/$process/exe" ] || continue # a kernel thread, a zombie, or gone
		kill -9 "$process" 2>/dev/null && left=1
	done
	[ $left = 0 ] && break
	tries=$((tries + 1))
	sleep 0.02
done
wait $reads_out $reads_err

# Copied first: files of /proc and /sys do not know their size.
mkdir /vm/files
dmesg >/vm/files/0
n=1
while IFS= read -r path; do
	[ ! -f "$path" ] || cat "$path" >/vm/files/$n || rm -f /vm/files/$n
	n=$((n + 1))
done </vm/wanted
tar -C /vm/files -cf "$files" .
echo "$TOKEN exit $status" >"$out"
poweroff -f
sleep 60
