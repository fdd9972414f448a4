/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Numbers of kinds of file systems: include/uapi/linux/magic.h.
 */
#ifndef BURSAR_MAGIC_H
#define BURSAR_MAGIC_H

#define DEVPTS_SUPER_MAGIC 0x1cd1
#define PROC_SUPER_MAGIC 0x9fa0
#define RAMFS_MAGIC 0x858458f6
#define TMPFS_MAGIC 0x01021994

#endif /* BURSAR_MAGIC_H */
