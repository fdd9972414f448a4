// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gate: growth that would pass the barrier is answered with ENOMEM or EAGAIN, before anything has
 * to die (S5 2.2 "graceful reject").
 *
 * Hooks:   lsm/mmap_addr (mmap, brk, mremap; mm->mmap_lock held for writing, which is what makes a
 *          charge free of races), lsm/file_mprotect (the same), lsm/task_alloc, lsm/task_free,
 *          lsm/bprm_check_security, lsm/task_prctl, lsm/inode_init_security_anon, tp_btf/task_newtask,
 *          tp_btf/sched_process_exec. LSM programs and no others decide: a tracing program is skipped where one was
 *          preempted, so it fails open, and security_vm_enough_memory_mm() is not asked about MAP_NORESERVE. What exec
 *          maps for a new image is the exception: no LSM hook is told how much that is.
 * Cost:    docs/design/measured-gate.md.
 * Absent:  the twins on fmod_ret try their best; without trampolines nothing is refused. Which of it is
 *          so the loader finds by an attempt: where `bpf` is not among the security modules an attach
 *          succeeds and nothing is ever called.
 */
#include <asm-generic/errno.h>

#include "privvmpages.bpf.h"
#include "login.bpf.h"
#include "page_size.bpf.h"

enum { PROT_WRITE = 2, MAP_SHARED = 1, MAP_ANONYMOUS = 0x20, VM_WRITE = 2, VM_SHARED = 8, CLONE_VM = 0x100,
       MREMAP_DONTUNMAP = 4, LOGIN_RESERVE_SHIFT = 24 };

/* A child that is being made: charged before its address space exists. */
struct birth {
	__u32 slot;
	__u32 pad;
	__s64 pages;
};

/* Key: struct task_struct * of the child. Written and read here only. Bound: (set), one for each fork
 * under way. Full: the child is not charged before it grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);	/* (set) */
	__type(key, __u64);
	__type(value, struct birth);
} births SEC(".maps");

/* Who grows, and who pays for it. By number: a global function hands on no pointers. */
struct requester {
	__u32 slot;
	__u32 record;	/* NOBODY: there was no room for one */
};

static __always_inline struct mm_record *record_of(const struct requester *requester)
{
	return requester->record != NOBODY ? record_at(requester->record) : NULL;
}

/* The running process, whose memory is its own here in every hook. False: nobody grows, or nothing bounds
 * it. Global, as the two below are: verified once, not in each state of the callers. */
__noinline int find_requester(struct requester *requester)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct ledger_state *state = ledger_state();
	struct mm_struct *mm = me->mm;
	struct payer payer = {};
	struct mm_record *record;
	struct account *account;
	__u32 index, slot = NOBODY;
	bool missed;

	if (!requester || !state || !mm || is_beyond_refusal(state, me))
		return false;
	if (payer_of_owner(state, mm->owner, &payer) != OWNER_FOUND &&
	    payer_of_owner(state, me, &payer) != OWNER_FOUND)
		return false;
	index = record_for((__u64)mm, mm_ctx_id(mm), &payer, &slot, &missed);
	account = slot != NOBODY ? account_at(slot) : NULL;
	if (!account || !(account->flags & ACCOUNT_USED) || (account->flags & ACCOUNT_PAUSED) ||
	    (account->barrier_pages == NO_BOUND_PAGES && account->limit_pages == NO_BOUND_PAGES &&
	     account->private_barrier_pages == NO_BOUND_PAGES))
		return false;
	requester->slot = slot;
	/* No room for it: then it is held against the account all the same, by what is held. */
	requester->record = index;
	record = missed ? record_of(requester) : NULL;
	if (record) {
		sync_at(record, number_of(mm));
		book(record, account, slot);
	}
	return true;
}

static __always_inline __s64 take_birth_pages(struct birth *birth, struct account *account)
{
	__s64 pages = take_all(&birth->pages);

	if (pages)
		__sync_fetch_and_add(&account->forking_pages, -pages);
	return pages;
}

/*
 * There is no child, or it is charged for itself by now. The charge is given back first: a delete may fail
 * (EBUSY) where it interrupts another of the same map, as it does from RCU's softirq (kernel/bpf/hashtab.c
 * htab_lock_bucket()). Then an entry without a charge stays until a child comes to lie at the same
 * address.
 */
static __noinline int end_birth(__u64 task)
{
	struct birth *birth = bpf_map_lookup_elem(&births, &task);
	struct account *account;

	if (!birth)
		return 0;
	account = account_at(birth->slot);
	if (account)
		__sync_fetch_and_add(&account->committed_pages, -take_birth_pages(birth, account));
	bpf_map_delete_elem(&births, &task);
	return 0;
}

/* S5's privvmpages: charged with the request, not when touched. Returns 1 where it passes. */
__noinline int commit(struct requester *requester, __s64 pages, __s64 credit, const struct tops *tops)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct ledger_state *state = ledger_state();
	struct mm_record *record = requester ? record_of(requester) : NULL;
	struct account *account = requester ? account_at(requester->slot) : NULL;

	if (!state || !record || !account || !tops)
		return 0;
	if (*(volatile __s64 *)&account->forking_pages)	/* ours, if nobody told of our beginning */
		end_birth((__u64)me);
	/* What was unmapped since, and a first try of this very call (mremap asks twice), ends here. */
	sync_commitment(record, account, probe_commitment(record, (__u64)me->mm));
	if (!try_charge(account, pages, pages, credit, tops)) {
		if (!recount(state, account, requester->slot) ||
		    !try_charge(account, pages, pages, credit, tops))
			return 0;
	}
	__sync_fetch_and_add(&record->committed_pages, pages);
	return 1;
}

/* Returns 1 where the account, as it is, has room for so much. Nothing is charged. */
__noinline int has_room(struct requester *requester, __s64 pages, __s64 credit, __s64 top)
{
	struct ledger_state *state = ledger_state();
	struct account *account = requester ? account_at(requester->slot) : NULL;
	struct mm_record *record;
	__s64 level, kept_back, in_stocks;

	if (!account || !state)
		return 0;
	level = level_of(account, pages, pages, credit, false);
	in_stocks = has_stocks(account) ? most_in_stocks(account) : 0;
	kept_back = kept_back_by(*(volatile __s32 *)&account->cpus + 1);
	if (level + kept_back <= top)
		return 1;
	/* Near: what CPUs keep back matters. Reading all of it is dear, and is done once: then events tell. */
	if (!come_near(state, account) && level + in_stocks <= top)
		return 1;
	if (in_stocks)
		void_stocks(state, account);
	record = record_of(requester);
	if (record) {
		sync_at(record, number_of(bpf_get_current_task_btf()->mm));
		book(record, account, requester->slot);
	}
	recount(state, account, requester->slot);
	return level_of(account, pages, pages, credit, false) <= top;
}

/* What is committed counts against the account's barrier, its own bound, or both. */
static __always_inline int fits_within(struct requester *requester, __s64 pages, __s64 credit, struct tops *tops,
				       bool is_private)
{
	struct account *account = account_at(requester->slot);
	bool is_committed = is_private && account && counts_commitment(account) && requester->record != NOBODY;

	if (!is_committed || account->measure != MEASURE_COMMITTED) {
		if (tops->level != NO_BOUND_PAGES && !has_room(requester, pages, credit, tops->level))
			return 0;
		tops->level = NO_BOUND_PAGES;
	}
	return !is_committed || commit(requester, pages, credit, tops);
}

/* What each login may ask for beyond the barrier, in programs that have no more than that. */
static __always_inline __s64 login_reserve_of_memory(const struct account *account)
{
	__s64 least = 1LL << (LOGIN_RESERVE_SHIFT - page_shift), share = account->limit_pages >> RESERVE_SHIFT;

	return account->limit_pages == NO_BOUND_PAGES || share < least ? least : share;
}

/* As far beyond a bound as who starts up, or logs in, may go. */
static __always_inline __s64 top_of_beginners(__s64 bound)
{
	return bound == NO_BOUND_PAGES ? NO_BOUND_PAGES : bound + by_page_size(RESERVE_PAGES);
}

/* Whether a request is refused. */
__noinline int is_refused(__s64 pages, __u32 request, __u32 is_private)
{
	struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	struct ledger_state *state = ledger_state();
	struct requester requester = {};
	struct mm_record *record;
	struct account *account;
	__s64 credit = 0, own, most, asked;
	struct tops tops;
	bool by_level;

	if ((pages <= 0 && request != REQUEST_EXEC) || !state || !mm || !find_requester(&requester))
		return false;
	account = account_at(requester.slot);
	record = record_of(&requester);
	if (!account)
		return false;
	/* By what is held exec was let pass, up to the limit: who is refused an image dies. */
	by_level = request != REQUEST_EXEC || account->measure == MEASURE_COMMITTED;
	if (record) {
		credit = *(volatile __s64 *)&record->reserved_pages;
		if (credit < 0)
			credit = 0;
		if (credit > pages)
			credit = pages;
	}
	tops.level = account->barrier_pages;
	tops.private = account->private_barrier_pages;
	own = (__s64)mm->data_vm + (__s64)mm->stack_vm;
	asked = request == REQUEST_EXEC ? own : pages;	/* an image is there already */
	if (credit && credit == pages && account->limit_pages != NO_BOUND_PAGES) {
		tops.level = account->limit_pages;
	} else if (own + (request == REQUEST_FORK ? 0 : pages) <= by_page_size(SMALL_PAGES)) {
		tops.level = top_of_beginners(account->limit_pages);
		tops.private = top_of_beginners(account->private_barrier_pages);
	}
	if (!by_level)
		tops.level = NO_BOUND_PAGES;
	if (fits_within(&requester, pages, credit, &tops, is_private))
		return false;
	/* Small ones only: a large one would be killed at the limit instead of being refused. */
	most = login_reserve_of_memory(account);
	if (own + pages <= most && take_login_reserve(login_of_me(), asked, most)) {
		tops.level = by_level ? top_of_beginners(account->limit_pages) : NO_BOUND_PAGES;
		tops.private = top_of_beginners(account->private_barrier_pages);
		if (fits_within(&requester, pages, credit, &tops, is_private))
			return false;
	}
	if (is_private && passes_private(account, pages, &tops)) {
		tell_private_refusal(account, requester.slot, asked);
		return !account->private_observed;
	}
	tell_refusal(account, requester.slot, request, asked, level_now(account));
	return !is_observed(account);
}

/* 0, or -error where the running process may not have so much. */
static __always_inline int admit(__s64 pages, __u32 request, bool is_private)
{
	return is_refused(pages, request, is_private) ? -ENOMEM : 0;
}

/* mmap, brk, mremap: who looks for a place in the address space wants to grow. */
static __always_inline int refuse_growth(void)
{
	struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	struct call call;
	__u64 brk;

	if (!mm)
		return 0;
	read_call(&call);
	switch (call.number) {
	case CALL_MMAP:
		/* A reservation of addresses: charged when it is made writable. */
		if (!(call.argument[2] & PROT_WRITE))
			return 0;
		if (call.argument[3] & MAP_SHARED) {
			if (!(call.argument[3] & MAP_ANONYMOUS))
				return 0;
			return admit(pages_of(call.argument[1]), REQUEST_MMAP, false);
		}
		return admit(pages_of(call.argument[1]), REQUEST_MMAP, true);
	case CALL_BRK:
		brk = mm->brk;
		if (call.argument[0] <= brk)
			return 0;
		return admit(pages_of(call.argument[0]) - pages_of(brk), REQUEST_BRK, true);
	case CALL_MREMAP:
		/* The old mapping stays: as much again, though no length changes. */
		if (call.argument[3] & MREMAP_DONTUNMAP)
			return admit(pages_of(call.argument[2]), REQUEST_MREMAP, true);
		if (call.argument[2] <= call.argument[1])
			return 0;
		return admit(pages_of(call.argument[2]) - pages_of(call.argument[1]),
			     REQUEST_MREMAP, true);
	default:
		return 0;	/* exec's own mappings among them: kill_refused_image() */
	}
}

/* Private memory becomes writable: it counts from now on. Every time, for the kernel forgets that it
 * had counted it when it is made read-only in between. */
static __always_inline int refuse_writable(struct vm_area_struct *vma, unsigned long prot)
{
	__u64 first = vma->vm_start, end = vma->vm_end, flags = vma->vm_flags;
	struct call call;

	if (!(prot & PROT_WRITE) || (flags & (VM_WRITE | VM_SHARED)))
		return 0;
	read_call(&call);
	if (call.number == CALL_MPROTECT) {
		__u64 asked_end = call.argument[0] + call.argument[1];

		/* An address with a tag (arm64) is beyond the end. */
		if (call.argument[0] > first && call.argument[0] < end)
			first = call.argument[0];
		if (asked_end < end)
			end = asked_end;
	}
	if (end <= first)
		return 0;
	return admit(pages_of(end - first), REQUEST_MPROTECT, true);
}

/* What a child holds at once: its tables. Its parent's private memory it shares until one of them writes. */
static __always_inline __s64 pages_of_tables(__u64 mm)
{
	return PROBE_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
}

static __always_inline int refuse_fork(__u64 child, __u64 clone_flags)
{
	struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	struct ledger_state *state = ledger_state();
	struct requester requester = {};
	struct birth birth = {};
	struct account *account;
	struct tops tops = { NO_BOUND_PAGES, NO_BOUND_PAGES };
	bool is_small, is_private;

	if (!mm || !state || (clone_flags & CLONE_VM) || !find_requester(&requester))
		return 0;
	account = account_at(requester.slot);
	if (!account)
		return 0;
	if (account->measure != MEASURE_COMMITTED && admit(pages_of_tables((__u64)mm), REQUEST_FORK, false))
		return -EAGAIN;
	if (!counts_commitment(account))
		return 0;

	birth.slot = requester.slot;
	birth.pages = (__s64)mm->data_vm + (__s64)mm->stack_vm;
	is_small = birth.pages <= by_page_size(SMALL_PAGES);
	if (account->measure == MEASURE_COMMITTED)
		tops.level = is_small ? top_of_beginners(account->limit_pages) : account->barrier_pages;
	tops.private = is_small ? top_of_beginners(account->private_barrier_pages) : account->private_barrier_pages;
	if (!try_charge(account, birth.pages, 0, 0, &tops) &&
	    (!recount(state, account, requester.slot) || !try_charge(account, birth.pages, 0, 0, &tops))) {
		if (take_login_reserve(login_of_me(), birth.pages, login_reserve_of_memory(account))) {
			if (tops.level != NO_BOUND_PAGES)
				tops.level = top_of_beginners(account->limit_pages);
			tops.private = top_of_beginners(account->private_barrier_pages);
		}
		if (!try_charge(account, birth.pages, 0, 0, &tops)) {
			is_private = passes_private(account, birth.pages, &tops);
			if (is_private)
				tell_private_refusal(account, requester.slot, birth.pages);
			else
				tell_refusal(account, requester.slot, REQUEST_FORK, birth.pages, level_now(account));
			if (!(is_private ? account->private_observed : is_observed(account)))
				return -EAGAIN;
			__sync_fetch_and_add(&account->committed_pages, birth.pages);
		}
	}
	__sync_fetch_and_add(&account->forking_pages, birth.pages);
	/* No room, which anybody may have used up: then it is charged for when it first grows. */
	if (bpf_map_update_elem(&births, &child, &birth, BPF_ANY)) {
		__sync_fetch_and_add(&account->forking_pages, -birth.pages);
		__sync_fetch_and_add(&account->committed_pages, -birth.pages);
	}
	return 0;
}

/* The child's address space is whole: it is charged for itself from now on. At no time is it charged
 * twice, which would be refused to others, or not at all. */
static __always_inline int charge_child(struct task_struct *child)
{
	struct ledger_state *state = ledger_state();
	struct mm_struct *mm = child->mm;
	__u64 task = (__u64)child;
	struct payer payer = {};
	struct mm_record *record;
	struct account *account;
	__u32 index, slot = NOBODY;
	struct birth *birth;
	bool missed;

	if (!state || !mm)
		return 0;
	birth = bpf_map_lookup_elem(&births, &task);
	if (!birth)
		return 0;
	if (payer_of_owner(state, child, &payer) == OWNER_FOUND) {
		index = record_for((__u64)mm, mm_ctx_id(mm), &payer, &slot, &missed);
		record = index != NOBODY ? record_at(index) : NULL;
		account = record ? account_at(record->account) : NULL;
		if (record && account && record->account == birth->slot)
			__sync_fetch_and_add(&record->committed_pages, take_birth_pages(birth, account));
		if (record && account && counts_commitment(account))
			sync_commitment(record, account, probe_commitment(record, (__u64)mm));
	}
	return end_birth(task);
}

/* Beyond the limit and what is set aside for `kill`, a new program would only be killed. The old one
 * goes on and can say so. */
static __always_inline int refuse_exec(void)
{
	struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	struct ledger_state *state = ledger_state();
	struct requester requester = {};
	struct mm_record *record;
	struct account *account;
	__s64 own = 0, top;

	if (!mm || !state || !find_requester(&requester))
		return 0;
	account = account_at(requester.slot);
	record = record_of(&requester);
	if (!account || account->limit_pages == NO_BOUND_PAGES)
		return 0;
	top = account->limit_pages + by_page_size(RESERVE_PAGES);
	/* What the caller has goes with its old image, unless it only borrows it (vfork). */
	if (record && mm->mm_users.counter == 1)
		own = account->measure == MEASURE_COMMITTED ? record->committed_pages :
							      pages_booked(record->booked);
	if (has_room(&requester, -own, 0, top))
		return 0;
	tell_refusal(account, requester.slot, REQUEST_EXEC, 0, level_now(account));
	return is_observed(account) ? 0 : -ENOMEM;
}

/* What exec maps for a new image by itself: its data, and .bss, which may be of any size. It is neither mmap nor brk, and
 * mmap_addr is not told how much. So it is asked about when the image is whole and none of it is touched: pages that the
 * kernel has counted already are charged, and none beyond them. Its old image is gone: who is refused dies here, by a
 * signal that nobody ignores. */
static __always_inline int kill_refused_image(void)
{
	return is_refused(0, REQUEST_EXEC, true) ? bpf_send_signal(SIGKILL) : 0;
}

static __always_inline bool is_secret_memory(const struct qstr *name)
{
	static const char secret[] = "[secretmem]";
	char text[sizeof(secret)] = {};
	int i;

	bpf_probe_read_kernel(text, sizeof(text), name->name);
	for (i = 0; i < (int)sizeof(secret); i++)
		if (text[i] != secret[i])
			return false;
	return true;
}

/* Secret memory stays when nobody maps it, is on no list of files, and in no counter: nobody could say who holds it. So
 * whoever is bounded gets none. */
static __noinline int refuse_secret_memory(void)
{
	struct requester requester = {};
	struct account *account;

	if (!find_requester(&requester))
		return 0;
	account = account_at(requester.slot);
	if (!account)
		return 0;
	tell_refusal(account, requester.slot, REQUEST_SECRET, 0, level_now(account));
	return is_observed(account) ? 0 : -ENOMEM;
}

static __always_inline int answer_prctl(__u64 operation, __u64 pages, __s64 *change)
{
	if (operation == GATE_ASK)
		return 0;
	if ((operation != GATE_RESERVE && operation != GATE_COMMIT) || !pages || pages > MOST_PAGES)
		return -EINVAL;
	*change = operation == GATE_RESERVE ? (__s64)pages : -(__s64)pages;
	return 0;
}

static __noinline int reserve_by_prctl(__u64 operation, __u64 pages)
{
	struct ledger_state *state = ledger_state();
	struct requester requester = {};
	struct mm_record *record;
	struct account *account;
	__s64 change = 0;
	int err;

	if (!state || !find_requester(&requester))
		return -ENXIO;
	err = answer_prctl(operation, pages, &change);
	if (err)
		return err;
	if (!change)
		return -EINPROGRESS;
	account = account_at(requester.slot);
	record = record_of(&requester);
	if (!record || !account)
		return -ENOMEM;
	err = change_reservation(state, account, requester.slot, record, change);
	return err ? err : -EINPROGRESS;
}

/* --- strict -------------------------------------------------------------------------------- */

SEC("lsm/mmap_addr")
int BPF_PROG(gate_growth, unsigned long addr, int ret)
{
	return ret ? ret : refuse_growth();
}

SEC("lsm/file_mprotect")
int BPF_PROG(gate_writable, struct vm_area_struct *vma, unsigned long reqprot, unsigned long prot,
	     int ret)
{
	return ret ? ret : refuse_writable(vma, prot);
}

SEC("lsm/task_alloc")
int BPF_PROG(gate_fork, struct task_struct *child, unsigned long clone_flags, int ret)
{
	return ret ? ret : refuse_fork((__u64)child, clone_flags);
}

SEC("lsm/bprm_check_security")
int BPF_PROG(gate_exec, struct linux_binprm *bprm, int ret)
{
	return ret ? ret : refuse_exec();
}

SEC("lsm/task_prctl")
int BPF_PROG(gate_prctl, int option, unsigned long operation, unsigned long pages,
	     unsigned long unused_1, unsigned long unused_2, int ret)
{
	if (ret || option != GATE_PRCTL)
		return ret;
	return reserve_by_prctl(operation, pages);
}

/* Of memfd_secret(2), and of some other files without a name. */
SEC("lsm/inode_init_security_anon")
int BPF_PROG(gate_secret_memory, struct inode *inode, const struct qstr *name, const struct inode *context, int ret)
{
	return ret || !is_secret_memory(name) ? ret : refuse_secret_memory();
}

/* Called by RCU, whatever became of the child; never skipped. */
SEC("lsm/task_free")
int BPF_PROG(gate_task_free, struct task_struct *task)
{
	return end_birth((__u64)task);
}

SEC("tp_btf/task_newtask")
int BPF_PROG(gate_child, struct task_struct *child, unsigned long clone_flags)
{
	return charge_child(child);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(gate_image)
{
	return kill_refused_image();
}

/* --- best effort: skipped where one of them was preempted --------------------------------- */

/* fmod_ret programs see the arguments of the kernel's function, which here are those of the hook. */
SEC("?fmod_ret/security_mmap_addr")
int BPF_PROG(try_growth, unsigned long addr)
{
	return refuse_growth();
}

SEC("?fmod_ret/security_file_mprotect")
int BPF_PROG(try_writable, struct vm_area_struct *vma, unsigned long reqprot, unsigned long prot)
{
	return refuse_writable(vma, prot);
}

SEC("?fmod_ret/security_task_alloc")
int BPF_PROG(try_fork, struct task_struct *child, unsigned long clone_flags)
{
	return refuse_fork((__u64)child, clone_flags);
}

/* Never answers 0, which would let the kernel's own function answer. */
SEC("?fmod_ret/security_task_prctl")
int BPF_PROG(try_prctl, int option, unsigned long operation, unsigned long pages)
{
	if (option != GATE_PRCTL)
		return 0;
	return reserve_by_prctl(operation, pages);
}

SEC("?fentry/security_task_free")
int BPF_PROG(try_task_free, struct task_struct *task)
{
	return end_birth((__u64)task);
}

char LICENSE[] SEC("license") = "GPL";
