#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Process 1 of a guest. Host and guest talk over virtio ports (vm/guest.rs is the other end):
#   bursar.out, bursar.err   what the command prints, then the token alone
#   bursar.control           ready UPTIME · file N SIZE, bytes · missing N · exit STATUS · ← ok
# Nothing of this uses the first serial port: that is the kernel's console.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /vm/settings # TOKEN MODE BPFFS TRACEFS ROWS COLUMNS

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

while read -r user uid; do
	mkdir -p "/home/$user" && chown "$uid:$uid" "/home/$user" && chmod 0700 "/home/$user"
done </vm/users

while read -r module parameters; do
	# shellcheck disable=SC2086 # parameters are words
	insmod "/vm/modules/$module.ko" $parameters || fail "cannot insert module $module"
done </vm/modules.list

cd /root || fail "no /root"

if [ "$MODE" = shell ]; then
	exec 8<>/dev/ttyS1 # kept open: a terminal that is closed forgets its size
	stty rows "$ROWS" cols "$COLUMNS" <&8
	setsid -c /bin/sh /vm/command </dev/ttyS1 >/dev/ttyS1 2>&1 8>&-
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
out=$(port out) && err=$(port err) && control=$(port control) || fail "no virtio ports"
exec 9<>"$control" || fail "cannot open $control"

# Pipes, as under any CI: a port is no terminal and can be opened only once, and what the command
# leaves running must not hold it. The readers must outlive a guest that is short of memory.
mkfifo /vm/stdout /vm/stderr
cat /vm/stdout >"$out" 9>&- &
reads_out=$!
cat /vm/stderr >"$err" 9>&- &
reads_err=$!
echo -1000 >/proc/$reads_out/oom_score_adj
echo -1000 >/proc/$reads_err/oom_score_adj

read -r uptime _ </proc/uptime
echo "ready $uptime" >&9
setsid /bin/sh /vm/command </dev/null >/vm/stdout 2>/vm/stderr 9>&-
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
echo "$TOKEN" >"$out"
echo "$TOKEN" >"$err"

# Copied first: files of /proc and /sys do not know their size.
send() { # N PATH
	if [ -f "$2" ] && cat "$2" >/vm/sending 2>/dev/null; then
		echo "file $1 $(stat -c %s /vm/sending)" >&9
		cat /vm/sending >&9
		rm /vm/sending
	else
		echo "missing $1" >&9
	fi
}
n=1
while IFS= read -r path; do
	send $n "$path"
	n=$((n + 1))
done </vm/wanted
dmesg >/vm/dmesg
send 0 /vm/dmesg
echo "exit $status" >&9
read -r _ <&9
poweroff -f
sleep 60
