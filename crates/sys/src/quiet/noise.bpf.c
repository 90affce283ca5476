// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0
// Who has each processor, and for how long: sums that user space reads from a map that it shares.
//
// Attached to tracepoints with their types (tp_btf), so that no tracefs is needed. Those that a kernel does not have are left out by
// noise.rs. Sums are kept for watched processors only; what happens to memory is counted on all of them.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define CO_RE __attribute__((preserve_access_index))
#define NAME 16
#define ORDERS 12

// Parts; the order is repeated in noise.rs.
enum { OWN, IDLE, KSWAPD, KCOMPACTD, KHUGEPAGED, WRITEBACK, KERNEL, PROGRAM, METER, INTERRUPT, SOFTIRQ, RECLAIM, COMPACT };
#define PARTS 16 // a power of two, for the verifier

#define PF_KTHREAD 0x00200000
#define PF_WQ_WORKER 0x00000020

struct task_struct {
	u32 flags;
	int pid;
	int tgid;
	char comm[NAME];
} CO_RE;

struct work_struct {
	void *func;
} CO_RE;

// The layout is repeated in noise.rs.
struct cpu_noise {
	u64 ns[PARTS];
	u64 changes;   // how often somebody else began to have it
	u64 longest_ns; // the longest stretch of another task since user space set this to 0, and whose
	u8 longest[NAME];
	u64 watched;    // in
	u64 since;
	u64 switched;
	u32 task;
	u32 hard;
	u32 soft;
	u32 unused;
	u64 woken[ORDERS];  // kswapd was asleep, and was woken for a block of this order
	u64 ran[ORDERS];    // kswapd went to work
	u64 direct[ORDERS]; // a task began to reclaim for itself
};

struct config {
	u64 writeback; // address of wb_workfn, or 0
	u64 tgid;      // of the process that measures
};

struct ran_key {
	u32 cpu;
	u32 tid;
};

struct ran {
	u64 ns;
	u32 part;
	u32 unused;
	u8 name[NAME];
};

struct {
	int (*type)[2]; // BPF_MAP_TYPE_ARRAY
	int (*map_flags)[1024]; // BPF_F_MMAPABLE
	int (*max_entries)[1]; // set by noise.rs
	u32 *key;
	struct cpu_noise *value;
} cpus SEC(".maps");

struct {
	int (*type)[2];
	int (*max_entries)[1];
	u32 *key;
	struct config *value;
} configs SEC(".maps");

// Threads whose time is measured, and what they are at: OWN, RECLAIM, COMPACT.
struct {
	int (*type)[1]; // BPF_MAP_TYPE_HASH
	int (*max_entries)[4096];
	u32 *key;
	u32 *value;
} measured SEC(".maps");

// Workers that write dirty pages back at the moment.
struct {
	int (*type)[1];
	int (*max_entries)[4096];
	u32 *key;
	u32 *value;
} flushing SEC(".maps");

struct {
	int (*type)[9]; // BPF_MAP_TYPE_LRU_HASH
	int (*max_entries)[16384];
	struct ran_key *key;
	struct ran *value;
} tasks SEC(".maps");

static void *(*const lookup)(void *map, const void *key) = (void *)1; // bpf_map_lookup_elem
static long (*const update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const delete)(void *map, const void *key) = (void *)3;
static u64 (*const now)(void) = (void *)5; // bpf_ktime_get_ns
static u32 (*const this_cpu)(void) = (void *)8;
static u64 (*const pid_tgid)(void) = (void *)14;
static long (*const probe_read)(void *to, u32 len, const void *from) = (void *)113; // bpf_probe_read_kernel

static inline struct cpu_noise *block(void)
{
	u32 cpu = this_cpu();

	return lookup(&cpus, &cpu);
}

static inline struct cpu_noise *watched(void)
{
	struct cpu_noise *cpu = block();

	return cpu && cpu->watched ? cpu : 0;
}

// Books the time since the last change to who has had the processor.
static inline void charge(struct cpu_noise *cpu)
{
	u64 at = now();
	u32 who = cpu->hard ? INTERRUPT : cpu->soft ? SOFTIRQ : cpu->task;

	if (cpu->since && at > cpu->since)
		cpu->ns[who & (PARTS - 1)] += at - cpu->since;
	cpu->since = at;
	cpu->changes++;
}

static inline int begins(const u8 *name, const char *with, int len)
{
	for (int at = 0; at < len; at++)
		if (name[at] != (u8)with[at])
			return 0;
	return 1;
}

static inline u32 part_of(struct task_struct *task, const u8 *name)
{
	u32 key = 0, tid = task->pid, flags = task->flags;
	struct config *config;

	if (!tid)
		return IDLE;
	if (flags & PF_KTHREAD) {
		if (begins(name, "kswapd", 6))
			return KSWAPD;
		if (begins(name, "kcompactd", 9))
			return KCOMPACTD;
		if (begins(name, "khugepaged", 10))
			return KHUGEPAGED;
		if ((flags & PF_WQ_WORKER) && lookup(&flushing, &tid))
			return WRITEBACK;
		return KERNEL;
	}
	config = lookup(&configs, &key);
	return config && config->tgid == task->tgid ? METER : PROGRAM;
}

// A task other than those measured has had the processor.
static inline void note(struct cpu_noise *cpu, struct task_struct *task, u32 part, u64 ns)
{
	struct ran_key key = { .cpu = this_cpu(), .tid = task->pid };
	struct ran *known = lookup(&tasks, &key);

	if (known) {
		known->ns += ns;
		known->part = part;
		probe_read(known->name, NAME, &task->comm);
	} else {
		struct ran fresh = { .ns = ns, .part = part };

		probe_read(fresh.name, NAME, &task->comm);
		update(&tasks, &key, &fresh, 0);
	}
	if (ns > cpu->longest_ns) {
		cpu->longest_ns = ns;
		probe_read(cpu->longest, NAME, &task->comm);
	}
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *context)
{
	struct task_struct *prev = (void *)context[1], *next = (void *)context[2];
	struct cpu_noise *cpu = watched();
	u32 tid, *own;
	u8 name[NAME];

	if (!cpu)
		return 0;
	cpu->hard = cpu->soft = 0;
	charge(cpu);
	tid = prev->pid;
	if (tid && cpu->switched && !lookup(&measured, &tid))
		note(cpu, prev, cpu->task, cpu->since - cpu->switched);
	cpu->switched = cpu->since;
	tid = next->pid;
	own = lookup(&measured, &tid);
	if (own) {
		cpu->task = *own;
	} else {
		probe_read(name, NAME, &next->comm);
		cpu->task = part_of(next, name);
	}
	return 0;
}

SEC("tp_btf/workqueue_execute_start")
int on_work(u64 *context)
{
	struct work_struct *work = (void *)context[0];
	u32 key = 0, tid = pid_tgid(), one = 1;
	struct config *config = lookup(&configs, &key);
	struct cpu_noise *cpu;

	if (!config || !config->writeback || (u64)work->func != config->writeback)
		return 0;
	update(&flushing, &tid, &one, 0);
	cpu = watched();
	if (cpu) {
		charge(cpu);
		cpu->task = WRITEBACK;
	}
	return 0;
}

SEC("tp_btf/workqueue_execute_end")
int on_work_done(u64 *context)
{
	u32 tid = pid_tgid();
	struct cpu_noise *cpu;

	if (!lookup(&flushing, &tid))
		return 0;
	delete(&flushing, &tid);
	cpu = watched();
	if (cpu) {
		charge(cpu);
		cpu->task = KERNEL;
	}
	return 0;
}

// A measured thread begins or ends to work for the kernel's memory management.
static inline void at_work(u32 part)
{
	u32 tid = pid_tgid();
	u32 *own = lookup(&measured, &tid);
	struct cpu_noise *cpu;

	if (!own)
		return;
	*own = part;
	cpu = watched();
	if (cpu) {
		charge(cpu);
		cpu->task = part;
	}
}

static inline void count(u64 *counts, u64 order)
{
	if (order < ORDERS)
		counts[order]++;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int on_reclaim(u64 *context)
{
	struct cpu_noise *cpu = block();
	u64 order = context[0];

	if (cpu)
		count(cpu->direct, order);
	at_work(RECLAIM);
	return 0;
}

SEC("tp_btf/mm_vmscan_wakeup_kswapd")
int on_wakeup(u64 *context)
{
	struct cpu_noise *cpu = block();
	u64 order = context[2];

	if (cpu)
		count(cpu->woken, order);
	return 0;
}

SEC("tp_btf/mm_vmscan_kswapd_wake")
int on_kswapd(u64 *context)
{
	struct cpu_noise *cpu = block();
	u64 order = context[2];

	if (cpu)
		count(cpu->ran, order);
	return 0;
}

#define AT_WORK(tracepoint, name, part) \
	SEC("tp_btf/" #tracepoint) int name(u64 *context) { at_work(part); return 0; }

AT_WORK(mm_vmscan_direct_reclaim_end, on_reclaimed, OWN)
AT_WORK(mm_vmscan_memcg_reclaim_begin, on_group_reclaim, RECLAIM)
AT_WORK(mm_vmscan_memcg_reclaim_end, on_group_reclaimed, OWN)
AT_WORK(mm_compaction_begin, on_compaction, COMPACT)
AT_WORK(mm_compaction_end, on_compacted, OWN)

static inline void enter(int hard)
{
	struct cpu_noise *cpu = watched();

	if (!cpu)
		return;
	charge(cpu);
	if (hard)
		cpu->hard++;
	else
		cpu->soft = 1;
}

static inline void leave(int hard)
{
	struct cpu_noise *cpu = watched();

	if (!cpu)
		return;
	charge(cpu);
	if (!hard)
		cpu->soft = 0;
	else if (cpu->hard)
		cpu->hard--;
}

#define PAIR(entry, exit, name, hard) \
	SEC("tp_btf/" #entry) int enter_##name(u64 *context) { enter(hard); return 0; } \
	SEC("tp_btf/" #exit) int leave_##name(u64 *context) { leave(hard); return 0; }

PAIR(irq_handler_entry, irq_handler_exit, handler, 1)
PAIR(softirq_entry, softirq_exit, softirq, 0)
// Interrupts of x86 that have no handler of a driver.
PAIR(local_timer_entry, local_timer_exit, timer, 1)
PAIR(reschedule_entry, reschedule_exit, reschedule, 1)
PAIR(call_function_entry, call_function_exit, call, 1)
PAIR(call_function_single_entry, call_function_single_exit, single, 1)
PAIR(irq_work_entry, irq_work_exit, work, 1)
PAIR(x86_platform_ipi_entry, x86_platform_ipi_exit, platform, 1)
// Of other architectures: between processors.
PAIR(ipi_entry, ipi_exit, ipi, 1)

char LICENSE[] SEC("license") = "Dual MIT/GPL";
