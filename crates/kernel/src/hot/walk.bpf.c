// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0
// Copies pages of kernel memory that user space names: the page tables of one process.
//
// Attached as an iterator over one task (iter/task, Linux 6.1). Each run tells where the task's page table begins and copies up to 512
// pages. It keeps nothing between runs and never writes to kernel memory; an address that cannot be read is an entry that says so.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define CO_RE __attribute__((preserve_access_index))
#define PAGE 4096
#define PAGES_MAX 512

struct mm_struct {
	void *pgd;
} CO_RE;

struct task_struct {
	struct mm_struct *mm;
} CO_RE;

struct bpf_iter__task {
	void *meta;
	struct task_struct *task;
} CO_RE;

// The layout is repeated in walk.rs.
struct request {
	u64 count;              // in: pages to copy
	u64 pgd;                // out: the kernel's address of the top table; 0 for a task without memory
	u64 address[PAGES_MAX]; // in: where; out: 0 for pages that could not be read
};

struct page {
	unsigned char bytes[PAGE];
};

struct {
	int (*type)[2]; // BPF_MAP_TYPE_ARRAY
	int (*map_flags)[1024]; // BPF_F_MMAPABLE
	int (*max_entries)[1];
	u32 *key;
	struct request *value;
} requests SEC(".maps");

struct {
	int (*type)[2];
	int (*map_flags)[1024];
	int (*max_entries)[PAGES_MAX];
	u32 *key;
	struct page *value;
} pages SEC(".maps");

static void *(*const lookup)(void *map, const void *key) = (void *)1;          // bpf_map_lookup_elem
static long (*const probe_read)(void *to, u32 len, const void *from) = (void *)113; // bpf_probe_read_kernel
static long (*const loop)(u32 times, void *callback, void *context, u64 flags) = (void *)181; // bpf_loop

static long copy(u32 index, void *context)
{
	u32 first = 0, key = index;
	struct request *request = lookup(&requests, &first);
	struct page *page = lookup(&pages, &key);
	u64 *address, at = index;

	// Opaque to the compiler, so that what is checked is the very register that is used: else the verifier cannot see the bound.
	asm volatile("" : "+r"(at));
	if (!request || !page || at >= PAGES_MAX)
		return 1;
	address = request->address + at;
	asm volatile("" : "+r"(address));
	if (probe_read(page, PAGE, (void *)*address))
		*address = 0;
	return 0;
}

SEC("iter/task")
int walk(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct request *request;
	struct mm_struct *mm;
	u32 first = 0;

	if (!task)
		return 0;
	request = lookup(&requests, &first);
	if (!request)
		return 0;
	mm = task->mm;
	request->pgd = mm ? (u64)mm->pgd : 0;
	if (mm)
		loop(request->count, copy, 0, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
