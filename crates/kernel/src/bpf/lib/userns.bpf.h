/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who answers for what is in a user namespace. From outside in, the first namespace below the initial one
 * that somebody other than root has made is his, with all in it: rootless containers map 65,536 uids, each
 * would be a fresh limit. What root has made (set-uid programs are root, too) says nothing about who uses
 * it: there everybody answers for himself, by his uid outside, as if there were no namespace.
 *
 * But for uids that root's namespace shifts by a range (systemd-nspawn -U): nobody has these, and who
 * gave them out answers for them (docs/design/10-roots-namespaces.md).
 */
#ifndef BURSAR_USERNS_BPF_H
#define BURSAR_USERNS_BPF_H

#include "probe_read.bpf.h"
#include "loop.bpf.h"

enum {
	USERNS_DEPTH = 33,	/* kernel/user_namespace.c refuses deeper nesting than 32 */
	MAP_EXTENTS = 5,	/* UID_GID_MAP_MAX_BASE_EXTENTS: more lie elsewhere, … */
	MOST_EXTENTS = 340,	/* … at most UID_GID_MAP_MAX_EXTENTS */
};

struct userns_owner {
	__u64 ns;
	__u32 uid;		/* in: outside all namespaces; out: who answers */
	__u32 is_shifted;	/* nobody has that uid outside */
};

struct extents {
	__u64 at;
	__u32 uid;
	__u16 count;
	__u16 is_shifted;
};

/* One uid that is mapped by itself is somebody's (bubblewrap: 0 inside, himself outside). */
static __always_inline long meet_extent(__u32 index, struct extents *extents)
{
	struct uid_gid_extent extent = {};

	bpf_probe_read_kernel(&extent, sizeof(extent),
			      (void *)(extents->at + index * sizeof(extent)));
	if (extents->uid - extent.lower_first >= extent.count)
		return 0;
	extents->is_shifted = extent.count > 1 && extent.first != extent.lower_first;
	return 1;
}
LOOP_BODY(meet_extent, struct extents *, what->count)

/* What a namespace's map gives as the lower end are uids of the initial one, whatever lies between. Its
 * fields share their place with others, which verifiers let no plain load choose among. */
static __always_inline bool is_shifted_in(__u64 ns, __u32 uid)
{
	struct uid_gid_map *map =
		(void *)(ns + bpf_core_field_offset(struct user_namespace, uid_map));
	struct extents extents = {
		.at = (__u64)map + bpf_core_field_offset(struct uid_gid_map, extent),
		.uid = uid,
	};
	__u32 count = 0;

	bpf_core_read(&count, sizeof(count), &map->nr_extents);
	if (count > MAP_EXTENTS)
		bpf_core_read(&extents.at, sizeof(extents.at), &map->reverse);
	if (count > MOST_EXTENTS)
		count = MOST_EXTENTS;
	extents.count = count;
	LOOP(meet_extent, &extents);
	return extents.is_shifted;
}

/* On the way outwards. */
struct way_out {
	__u64 ns;
	__u64 home;	/* the innermost of root's around who answers */
	__u32 uid;
	__u32 pad;
};

static __always_inline long step_out(__u32 index, struct way_out *way)
{
	__u32 owner;

	if (!way->ns || PROBE_READ(way->ns, struct user_namespace, level) <= 0)
		return 1;
	owner = PROBE_READ(way->ns, struct user_namespace, owner.val);
	way->ns = (__u64)PROBE_READ(way->ns, struct user_namespace, parent);
	if (owner) {
		way->uid = owner;
		way->home = way->ns;
	}
	return 0;
}
LOOP_BODY(step_out, struct way_out *, USERNS_DEPTH)

/* A global function, so that the verifier looks at it once for all who ask. */
__noinline int find_userns_owner(struct userns_owner *owner)
{
	struct way_out way = {};

	if (!owner)
		return 0;
	way.ns = way.home = owner->ns;
	way.uid = owner->uid;
	LOOP(step_out, &way);
	owner->uid = way.uid;
	owner->is_shifted = way.home != way.ns && is_shifted_in(way.home, way.uid);
	return 0;
}

#endif /* BURSAR_USERNS_BPF_H */
