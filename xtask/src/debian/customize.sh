#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# customize.sh WORK HOST ROOT: makes a machine of what mmdebstrap has unpacked in ROOT. In WORK lie key.pub and
# modules, the kernel's. What is left out is what costs time to boot under an emulator and has nothing to do
# with users, sessions and memory.
set -eu
work=$1
host=$2
root=$3
in_root() { chroot "$root" "$@"; }

# How this machine reaches its mirrors is nobody's business there, nor are the users' own prompts.
rm -rf "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/apt/auth.conf* "$root"/etc/apt/sources.list* \
	"$root"/etc/skel/.bashrc
mkdir -p "$root/usr/lib/modules" "$root/srv"
cp -a "$work/modules/." "$root/usr/lib/modules/"
echo "$host" >"$root/etc/hostname"
echo "127.0.0.1 localhost $host" >"$root/etc/hosts"
echo "/dev/vda / ext4 noatime 0 1" >"$root/etc/fstab"

# Users with passwords (their names) and keys. They are who they are on any Debian: 1000, 1001, 1002.
mkdir -p "$root/root/.ssh"
cp "$work/key.pub" "$root/root/.ssh/authorized_keys"
for user in alice bob carol; do
	in_root useradd --create-home --shell /bin/bash $user
	echo "$user:$user" | in_root chpasswd
	mkdir -p "$root/home/$user/.ssh"
	cp "$work/key.pub" "$root/home/$user/.ssh/authorized_keys"
	in_root chown -R $user: /home/$user
done
in_root usermod --append --groups sudo carol
# A prompt that ends each command with its status, and lines that are not wrapped.
cat >>"$root/etc/bash.bashrc" <<'END'
PS1='\u@\h:\w [$?]\$ '
COLUMNS=500
END

# The administrator's own line into the machine: a shell of root's that no limit, no full process table and
# no broken network takes away.
cat >"$root/etc/systemd/system/control.service" <<'END'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service systemd-tmpfiles-setup-dev.service
Before=sysinit.target
[Service]
ExecStart=/bin/bash -c 'echo control: ready; exec /bin/bash --login -i'
StandardInput=tty-force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/hvc0
TTYReset=yes
Environment=HOME=/root USER=root TERM=dumb DEBIAN_FRONTEND=noninteractive
WorkingDirectory=/root
Restart=always
RestartSec=0
OOMScoreAdjust=-1000
[Install]
WantedBy=sysinit.target
END
cat >"$root/etc/systemd/system/network.service" <<'END'
[Unit]
DefaultDependencies=no
Before=network.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'for i in lo /sys/class/net/e*; do ip link set "$${i##*/}" up; done; ip addr add 10.0.2.15/24 dev "$${i##*/}"'
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root/etc/systemd/system/systemd-udev-trigger.service.d"
cat >"$root/etc/systemd/system/systemd-udev-trigger.service.d/few.conf" <<'END'
[Service]
ExecStart=
ExecStart=-udevadm trigger --type=devices --action=add --subsystem-match=tty --subsystem-match=block --subsystem-match=net
END
in_root systemctl --quiet enable control network ssh cron atd serial-getty@ttyS1
in_root systemctl --quiet set-default multi-user
# The mail server begins where a scenario begins it. It had named itself after the machine that made this one.
in_root systemctl --quiet disable exim4
echo "$host" >"$root/etc/mailname"
sed -i "s/^dc_other_hostnames=.*/dc_other_hostnames='$host'/" "$root/etc/exim4/update-exim4.conf.conf"
# The journal of an earlier boot stays.
mkdir -p "$root/var/log/journal"
# What is done when /etc or /usr is newer than the last time is done.
touch -d tomorrow "$root/etc/.updated" "$root/var/.updated"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
	fstrim.timer man-db.timer podman.service podman.socket podman-auto-update.timer podman-restart.service \
	podman-clean-transient.service netavark-dhcp-proxy.socket netavark-firewalld-reload.service \
	systemd-timesyncd.service systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-pstore.service \
	systemd-tpm2-setup.service systemd-tpm2-setup-early.service systemd-hibernate-clear.service \
	systemd-network-generator.service systemd-networkd.service systemd-networkd.socket \
	systemd-udev-load-credentials.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount \
	systemd-modules-load.service systemd-firstboot.service kmod-static-nodes.service ldconfig.service \
	modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service \
	modprobe@dm_mod.service modprobe@loop.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount \
	sys-kernel-config.mount sys-fs-fuse-connections.mount systemd-ask-password-wall.path \
	systemd-ask-password-console.path remote-fs.target getty@tty1.service serial-getty@ttyS0.service \
	serial-getty@hvc0.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
mkdir -p "$root/etc/systemd/system-generators"
for generator in "$root"/usr/lib/systemd/system-generators/*; do
	case $generator in
	*/systemd-fstab-generator | */systemd-getty-generator | */systemd-sysv-generator) ;;
	*) ln -sf /dev/null "$root/etc/systemd/system-generators/${generator##*/}" ;;
	esac
done
