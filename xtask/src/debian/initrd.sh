#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Process 1 of a whole Debian until its disk is there.
/usr/bin/busybox --install -s /usr/bin
export PATH=/usr/bin
mount -t devtmpfs devtmpfs /dev
exec </dev/console >/dev/console 2>&1
while read -r module parameters; do
	# shellcheck disable=SC2086 # parameters are words
	insmod "/vm/modules/$module.ko" $parameters
done </vm/modules.list
while ! [ -b /dev/vda ]; do sleep 0.02; done
mkdir /root/disk
mount -t ext4 -o noatime /dev/vda /root/disk
umount /dev
exec switch_root /root/disk /sbin/init
