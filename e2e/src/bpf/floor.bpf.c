// SPDX-License-Identifier: GPL-2.0-only
/*
 * Programs that do nothing, where the beancounters of files, sockets and processes have theirs: what it costs that they
 * are called at all. No beancounter can be cheaper.
 *
 * Hooks:   those below, one program each.
 */
#include "compat.bpf.h"

#define FLOOR(hook, name)                                                                          \
	SEC(hook)                                                                                  \
	int name(void *ctx)                                                                        \
	{                                                                                          \
		return 0;                                                                          \
	}

FLOOR("lsm/file_free_security", floor_file_free)
FLOOR("?lsm/file_alloc_security", floor_file)
FLOOR("?fmod_ret/security_file_alloc", floor_file_try)
FLOOR("lsm/sk_free_security", floor_socket_free)
FLOOR("lsm/socket_post_create", floor_socket)
FLOOR("lsm/task_free", floor_task_free)
FLOOR("lsm/task_alloc", floor_fork)

char LICENSE[] SEC("license") = "GPL";
