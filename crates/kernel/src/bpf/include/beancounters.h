/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Beancounters (S5), as both halves see them: the rows that the kernel half can refuse, and what a look
 * at the machine (resource_iterator.bpf.c) tells of each task and each open file.
 *
 * Rows count pieces, or pages where their name says so; BILL_KMEMSIZE and buffers count bytes.
 */
#ifndef BURSAR_BEANCOUNTERS_H
#define BURSAR_BEANCOUNTERS_H

enum bill_row {
	BILL_NUMPROC = 0,
	BILL_NUMFILE = 1,
	BILL_NUMTCPSOCK = 2,
	BILL_NUMOTHERSOCK = 3,
	BILL_NUMFLOCK = 4,
	BILL_NUMPTY = 5,
	BILL_NUMSIGINFO = 6,
	BILL_SHMPAGES = 7,
	BILL_LOCKEDPAGES = 8,
	BILL_KMEMSIZE = 9,
	BILL_OTHERSOCKBUF = 10,
	BILL_DGRAMRCVBUF = 11,
	BILL_TCPSNDBUF = 12,
	BILL_TCPRCVBUF = 13,
	BILL_ROWS = 14,
	BILL_PRIVVMPAGES = 16,	/* in events only: the gate charges it, in the ledger's account */
};

enum bill_constant {
	NAMESPACE_KINDS = 8,	/* the first of the kernel's enum ucount_type */
	BILL_UNLIMITED = 0,	/* see row.counted: bounds of an uncounted row mean nothing */
};

/* One row of an account (S5 2.2). UBC's rule: held may equal the barrier; maxheld moves with a charge
 * that was granted; failcnt is one for each that was not. */
struct row {
	__s64 held;
	__s64 maxheld;
	__s64 barrier;		/* NO_BOUND_PAGES: none */
	__s64 limit;		/* beyond the barrier: numflock's, and guarantees of network buffers; else shown only */
	__u64 failcnt;
	__u64 untold;		/* refusals since the last one told */
	__u64 told_ns;
	__u32 counted;		/* what it charges is remembered; else the row is nobody's */
	__u32 observed;		/* what would be refused is told, and granted */
};

enum tcp_direction {
	TCP_SENDING = 0,	/* BILL_TCPSNDBUF */
	TCP_RECEIVING = 1,	/* BILL_TCPRCVBUF */
	TCP_DIRECTIONS = 2,
};

enum bill_state {
	BILL_NONE = 0,
	BILL_BEGUN = 1,		/* somebody is about to write it */
	BILL_MADE = 2,
};

struct bill {
	struct row rows[BILL_ROWS];
	__u64 account_id;	/* whose: slots are given to others */
	__s64 scanned_bytes;	/* of kmemsize: all but namespaces, as the last scan found it */
	__s64 sockets;		/* with a record in socket_buffers */
	__s64 tcp_sockets;	/* with a record in tcp_buffers */
	enum bill_state state;
	__u32 counted_rows;	/* a bit for each row that is counted */
	__u32 pad[6];
};

/* What a socket has booked, to the account that pays for it: words of socket_record.bpf.h. */
struct socket_buffers {
	__u64 sending;		/* of BILL_OTHERSOCKBUF */
	__u64 receiving;	/* of BILL_DGRAMRCVBUF */
	__u32 slot;
	__u32 pad;
};

/* What a TCP socket may hold, or holds where that is more, is booked to the account that pays for it. */
struct tcp_buffers {
	__u64 booked[TCP_DIRECTIONS];	/* words of socket_record.bpf.h */
	__s64 asked[TCP_DIRECTIONS];	/* by its program (SO_SNDBUF, SO_RCVBUF): no more is granted; 0: nothing */
	__u32 slot;
	__u32 is_sized;		/* a bit for each direction whose buffer is ours */
};

/* What was charged for an object, and to whom: it goes back there whoever lets go of the object. */
struct charge {
	__s64 amount;
	__u32 slot;
	__u32 row;		/* that paid */
};

enum { CHARGES_TOGETHER = 3 };

/* Charges that lie together, a cache line: those of objects with one index (group_of()). */
struct charge_group {
	__u64 keys[CHARGES_TOGETHER];	/* 0: there is none; KEY_BEING_WRITTEN */
	__u64 charges[CHARGES_TOGETHER];	/* packed_charge() */
	__s64 elsewhere;	/* found no room here and are in further_charges, or about to be */
	__u64 pad;
};

/* Who pays for a uid outside all namespaces, as found before. */
struct known_slot {
	__u64 uid_and_generation;
	__u64 slot_and_check;	/* the high half says whether the low one belongs to the above */
};

struct bill_facts {
	/* of bad days; each only grows */
	__u64 unrecorded;	/* charges that found no room: granted and not counted */
	__u64 recounts;		/* file locks counted anew */
	__u64 buffers_due_ns;	/* no request has buffers counted anew before that */
	__s64 locked_files;	/* records that there are, or more: nobody looks for what there is none of */
	__u64 generation;	/* raised whenever rows are set */
	__u32 entered_rows;	/* a bit for each row that an account one enters has ever had counted */
	__u32 pad;
};

struct set_bill_args {
	__u32 slot;		/* 0: the template of `default` */
	__u32 row;
	__u32 counted;
	__u32 observed;
	__u64 account_id;
	__s64 barrier, limit;
};

struct forget_bill_args {
	__u32 slot;
	__u32 row;		/* BILL_ROWS: all of them, and the bill itself */
};

struct note_kernel_memory_args {
	__u32 slot;
	__u32 pad;
	__u64 account_id;	/* whose slot it was */
	__s64 scanned_bytes;
	__s64 held_bytes;	/* with namespaces */
};

/* A task as a look finds it; what is of its address space is told by each of its tasks. */
struct seen_task {
	__u64 mm;		/* 0: none, or no more */
	__u32 uid;		/* its user; who pays, unless it has entered an account */
	__u32 tgid;
	__u32 tid;
	__u32 pad;
	__u64 entered;		/* the account that it has entered and that pays; 0: none */
	__s64 file_pages, anon_pages, swap_pages, shmem_pages;
	__s64 data_pages, stack_pages;
	__s64 locked_pages, pinned_pages;
	__s64 table_bytes;
	__s64 areas;
	/* of its user, over all his processes */
	__s64 pending_signals;
	__s64 namespace_bytes;
};

enum seen_kind {
	SEEN_OTHER = 0,
	SEEN_TCP = 1,
	SEEN_DATAGRAM = 2,
	SEEN_SOCKET = 3,	/* neither */
	SEEN_PTY = 4,		/* a master */
	SEEN_PIPE = 5,
};

struct seen_file {
	__u64 file;
	__u64 inode;
	__u32 uid;		/* who opened it */
	__u16 kind;		/* enum seen_kind */
	__u16 is_cut;		/* it may have more locks */
	__u32 locks;		/* file locks taken through it */
	__u32 pad;
	__u64 entered;		/* the account that who has it open has entered; 0: none */
	__s64 send_bytes, receive_bytes;
};

_Static_assert(sizeof(struct row) == 64, "a cache line");
_Static_assert(sizeof(struct charge_group) == 64, "a cache line");
_Static_assert(sizeof(struct seen_task) == 128, "read by the user half");
_Static_assert(sizeof(struct seen_file) == 56, "read by the user half");

#endif /* BURSAR_BEANCOUNTERS_H */
