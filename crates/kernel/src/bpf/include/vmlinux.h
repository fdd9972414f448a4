/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel types our programs read, and of each only the fields they read.
 *
 * Hand-written instead of dumped: it compiles in a twentieth of the time, shows at a glance what we
 * depend on, and CO-RE (preserve_access_index) relocates every access to the running kernel's own
 * layout. A field that a kernel may lack is declared here all the same and asked for with
 * bpf_core_field_exists() in compat.bpf.h, nowhere else.
 */
#ifndef BURSAR_VMLINUX_H
#define BURSAR_VMLINUX_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __s8 s8;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;
typedef _Bool bool;
enum { false = 0, true = 1 };
#define NULL ((void *)0)

/* include/uapi/linux/bpf.h: only what our maps and helpers name */
enum bpf_map_type {
	BPF_MAP_TYPE_UNSPEC = 0,
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
/* include/linux/pid_types.h; a kfunc's argument, so its type must match */
enum pid_type { PIDTYPE_PID = 0, PIDTYPE_TGID = 1 };

enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_F_NO_PREALLOC = 1U << 0, BPF_F_MMAPABLE = 1U << 10 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic64_t;

typedef struct {
	long counter;
} atomic_long_t;

/* include/linux/refcount_types.h; we use it as "an int at an address", for it has a name that
 * bpf_rdonly_cast() can be told, which atomic_t has not */
struct refcount_struct {
	atomic_t refs;
};

typedef struct {
	u32 val;
} kuid_t;

/* lib/percpu_counter.c: `count` is the shared part; each CPU keeps up to `batch` of its own */
struct percpu_counter {
	s64 count;
	s32 *counters;
};

struct user_namespace;

/* kernel/ucount.c: what the kernel itself counts for each user; enum rlimit_type says which is which */
struct ucounts {
	struct user_namespace *ns;
	atomic_long_t ucount[8];
	atomic_long_t rlimit[4];
};

enum rlimit_type { UCOUNT_RLIMIT_SIGPENDING = 2 };

/* Before 5.19 ucount has these, too (de399236e240 "ucounts: Split rlimit and ucount values and max values"). */
enum ucount_type___of_limits { UCOUNT_RLIMIT_SIGPENDING___in_ucount = 2 };

enum ucount_type {
	UCOUNT_USER_NAMESPACES = 0,
	UCOUNT_NET_NAMESPACES = 4,
	UCOUNT_MNT_NAMESPACES = 5,
};

struct uid_gid_extent {
	u32 first;
	u32 lower_first;
	u32 count;
};

struct uid_gid_map {
	u32 nr_extents;
	struct uid_gid_extent extent[5];
	struct uid_gid_extent *reverse;
};

struct user_namespace {
	struct uid_gid_map uid_map;
	struct user_namespace *parent;
	int level;
	kuid_t owner;
	struct ucounts *ucounts;
};

struct cred {
	kuid_t uid, euid;
	struct user_namespace *user_ns;
	struct ucounts *ucounts;
};

struct completion;

struct list_head {
	struct list_head *next, *prev;
};

struct core_state;

struct signal_struct {
	atomic_t live;		/* threads that have not begun to end */
	int nr_threads;
	int leader;
	struct list_head thread_head;
	struct tty_struct *tty;
	unsigned int flags;
	struct core_state *core_state;
	short oom_score_adj;
	short oom_score_adj_min;
	unsigned long min_flt, maj_flt;	/* of threads that have ended */
};

typedef struct {
	u64 ctx_id;
} mm_context_t;

struct task_struct;
struct file;

struct rw_semaphore {
	atomic_long_t count;	/* both not with CONFIG_PREEMPT_RT */
	atomic_long_t owner;
};

struct mm_struct {
	atomic_t mm_users;
	unsigned long data_vm;
	unsigned long stack_vm;
	unsigned long locked_vm;
	atomic64_t pinned_vm;
	int map_count;
	unsigned long end_code;
	unsigned long brk;
	struct rw_semaphore mmap_lock;
	atomic_long_t pgtables_bytes;
	atomic_long_t hugetlb_usage;	/* CONFIG_HUGETLB_PAGE */
	struct percpu_counter rss_stat[4];
	mm_context_t context;
	struct task_struct *owner;
	struct file *exe_file;
	unsigned long ksm_merging_pages;	/* CONFIG_KSM */
	unsigned long saved_auxv[1];		/* in fact longer */
};

struct anon_vma {
	struct anon_vma *root;
	unsigned long num_children;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	struct anon_vma *anon_vma;
};

#if defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 pstate;
	s32 syscallno;	/* negative: no system call */
};
#else	/* x86 */
struct pt_regs {
	unsigned long bx;
	unsigned long r10;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};
#endif

struct thread_info {
	u32 status;	/* x86 */
};

struct linux_binprm;
struct files_struct;
struct page;

/* include/linux/kernfs.h, cgroup-defs.h */
struct kernfs_iattrs {
	kuid_t ia_uid;
};

struct kernfs_node {
	u64 id;
	struct kernfs_iattrs *iattr;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

enum cgroup_subsys_id {
	memory_cgrp_id,
};

struct pglist_data {
	int node_id;
	atomic_long_t vm_stat[1];	/* enum node_stat_item */
};

struct lruvec {
	struct pglist_data *pgdat;	/* CONFIG_MEMCG */
};

struct mem_cgroup_per_node {
	struct lruvec lruvec;
};

/* It begins with its struct cgroup_subsys_state. */
struct mem_cgroup {
	struct mem_cgroup_per_node *nodeinfo[1];	/* for each node that the machine could have */
};

enum node_stat_item {
	NR_INACTIVE_FILE = 2,
	NR_ACTIVE_FILE = 3,
	NR_SHMEM = 4,
};

struct css_set {
	struct cgroup *dfl_cgrp;
	struct cgroup_subsys_state *subsys[1];
};

struct mnt_namespace {
	unsigned int nr_mounts;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	unsigned int policy;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	u64 start_boottime;
	const struct cred *real_cred;
	char comm[16];
	struct completion *vfork_done;	/* it has its parent's memory until it executes a program */
	struct list_head thread_node;	/* of its process's threads; its leader is the first */
	struct signal_struct *signal;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct css_set *cgroups;	/* CONFIG_CGROUPS */
	unsigned int __state;
	unsigned long min_flt, maj_flt;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_array {
	void *pptrs[0];
};

#pragma clang attribute pop

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_task {
	__u64 opaque[3];
} __attribute__((aligned(8)));

#endif /* BURSAR_VMLINUX_H */
