// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0
// Reads the page tables of one process.
//
// Two programs, both attached as iterators over one task (iter/task, Linux 6.1): `walk` tells where the task's page table begins and
// copies up to 64 pages of kernel memory that user space names; `look` goes down from there by itself, to the tables of the 2 MiB
// ranges that user space names. They keep nothing between runs and never write to kernel memory; what cannot be read is an entry that says
// so.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define CO_RE __attribute__((preserve_access_index))
#define PAGE 4096
#define PAGES_MAX 64
#define RANGES_MAX 64

// Bits of page table entries, as in walk.rs.
#define PRESENT 1ULL
#define LARGE (1ULL << 7)
#define ADDRESS 0x000ffffffffff000ULL

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

// The layout is repeated in walk.rs.
struct looked {
	u64 count;             // in: ranges to look at
	u64 levels;            // in: levels of page tables
	u64 direct_map;        // in: where the kernel maps all memory
	u64 pgd;               // out: as above
	u64 known;             // the 1 GiB whose table is `table`, plus one; 0 for none
	u64 table;             // 0: there is none
	u64 range[RANGES_MAX]; // in: addresses divided by 2 MiB
	u64 entry[RANGES_MAX]; // out: what maps the range; 0 for nothing
	u64 again[RANGES_MAX]; // out: the same, found anew after all tables were copied
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
	int (*max_entries)[1];
	u32 *key;
	struct looked *value;
} looks SEC(".maps");

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

// The entry that maps `range`, found from the top unless the table of its 1 GiB is known.
static __attribute__((always_inline)) u64 entry_of(struct looked *looked, u64 range)
{
	u64 entry = 0, table;

	if (looked->known != (range >> 9) + 1) {
		table = looked->pgd;
#pragma unroll
		for (int level = 3; level > 0; level--) {
			if ((u64)level + 1 < looked->levels && table) {
				entry = 0;
				probe_read(&entry, sizeof(entry), (void *)(table + (range >> 9 * level & 511) * sizeof(entry)));
				table = (entry & (PRESENT | LARGE)) == PRESENT ? looked->direct_map + (entry & ADDRESS) : 0;
			}
		}
		looked->known = (range >> 9) + 1;
		looked->table = table;
	}
	if (!looked->table)
		return 0;
	entry = 0;
	probe_read(&entry, sizeof(entry), (void *)(looked->table + (range & 511) * sizeof(entry)));
	return entry;
}

static long take(u32 index, void *context)
{
	u32 first = 0, key = index;
	struct looked *looked = lookup(&looks, &first);
	struct page *page = lookup(&pages, &key);
	u64 entry, at = index;

	asm volatile("" : "+r"(at));
	if (!looked || !page || at >= RANGES_MAX)
		return 1;
	entry = entry_of(looked, looked->range[at]);
	if ((entry & (PRESENT | LARGE)) == PRESENT && probe_read(page, PAGE, (void *)(looked->direct_map + (entry & ADDRESS))))
		entry = 0;
	looked->entry[at] = entry;
	return 0;
}

static long verify(u32 index, void *context)
{
	u32 first = 0;
	struct looked *looked = lookup(&looks, &first);
	u64 at = index;

	asm volatile("" : "+r"(at));
	if (!looked || at >= RANGES_MAX)
		return 1;
	looked->again[at] = entry_of(looked, looked->range[at]);
	return 0;
}

SEC("iter/task")
int look(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct looked *looked;
	struct mm_struct *mm;
	u32 first = 0;

	if (!task)
		return 0;
	looked = lookup(&looks, &first);
	if (!looked)
		return 0;
	mm = task->mm;
	looked->pgd = mm ? (u64)mm->pgd : 0;
	if (!mm)
		return 0;
	looked->known = 0;
	loop(looked->count, take, 0, 0);
	looked->known = 0;
	loop(looked->count, verify, 0, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
