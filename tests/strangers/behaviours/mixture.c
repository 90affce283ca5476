// Many awkward things at once in one process, chosen by a seed, every byte verified. usage: mixture SEED OPERATIONS [only=LIST] [without=LIST]
//
// Four threads do operations of random kinds, in regions of their own and in shared ones, while another one keeps memory short and a timer's
// handler reads and writes. What a wrong word was written by can be told from it. A finding is narrowed down by lists of kinds: only=fork,write;
// pressure and alarms are always there but for without=pressure,alarms.
#include "mixture_base.h"
#include "mixture_memory.h"
#include "mixture_kernel.h"
#include "mixture_process.h"

enum { NO_FILES, HAS_FILES, OWNS_NUMBERS };

static struct kind {
    const char *name;
    void (*run)(void);
    // How often, compared with the others.
    int weight;
    int files;
} kinds[] = {
    {"read", do_read, 60},
    {"write", do_write, 60},
    {"shared", do_shared, 30},
    {"readonly", do_readonly, 20},
    {"discard", do_discard, 30},
    {"free", do_free, 15},
    {"advice", do_advice, 30},
    {"protect", do_protect, 20},
    {"move", do_move, 10},
    {"rawmap", do_rawmap, 10},
    {"overmap", do_overmap, 10},
    {"heap", do_heap, 40},
    {"lock", do_lock, 15},
    {"stack", do_stack, 15},
    {"timer", do_timer, 10},
    {"file", do_file, 10, HAS_FILES},
    {"direct", do_direct, 10, HAS_FILES},
    {"vectors", do_vectors, 10, HAS_FILES},
    {"process", do_process, 10},
    {"socket", do_socket, 10, HAS_FILES},
    {"pipe", do_pipe, 10, HAS_FILES},
    {"splice", do_splice, 8, HAS_FILES},
    {"vmsplice", do_vmsplice, 10, HAS_FILES},
    {"gift", do_gift, 10, HAS_FILES},
    {"zerocopy", do_zerocopy, 10, HAS_FILES},
    {"uring", do_uring, 10, HAS_FILES},
    {"registered", do_registered, 10, HAS_FILES},
    {"random", do_random, 10},
    {"filemap", do_filemap, 8, HAS_FILES},
    {"fork", do_fork, 3, HAS_FILES},
    {"storm", do_storm, 1, HAS_FILES},
    {"rights", do_rights, 2, HAS_FILES},
    {"spawn", do_spawn, 2, HAS_FILES},
    {"stops", do_stops, 3, HAS_FILES},
    {"locale", do_locale, 2, HAS_FILES},
    {"descriptors", do_descriptors, 6, OWNS_NUMBERS},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static u64 operations;
static const char *only, *without;

static int listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0)) return 1;
    return 0;
}

static void operate(struct kind *kind) {
    me->kind = kind->name;
    if (kind->files == HAS_FILES) pthread_rwlock_rdlock(&descriptors);
    if (kind->files == OWNS_NUMBERS) pthread_rwlock_wrlock(&descriptors);
    kind->run();
    if (kind->files) pthread_rwlock_unlock(&descriptors);
    me->counts[kind - kinds]++;
}

static void *work(void *of) {
    me = of;
    long weights = 0;
    for (int i = 0; i < KINDS; i++) weights += kinds[i].weight;
    for (me->operation = 1; me->operation <= operations / WORKERS; me->operation++) {
        // What an operation does depends on nothing that happened before.
        me->state = (seed * WORKERS + me->number) * 0x2545f4914f6cdd1dul + me->operation;
        long choice = chance(weights);
        struct kind *kind = kinds;
        while ((choice -= kind->weight) >= 0) kind++;
        operate(kind);
    }
    me->kind = "end";
    verify(&me->own, all(&me->own));
    verify(&me->other, all(&me->other));
    verify(&me->moving, all(&me->moving));
    return 0;
}

// Memory that is filled and read again as fast as it goes: whatever can leave leaves.
static void *press(void *of) {
    me = of;
    while (!over) {
        struct region *r = &me->own;
        r->at = pages(r->pages * PAGE);
        rewrite(r, all(r));
        for (int i = 0; i < 8 && !over; i++) verify(r, some(r, 4096));
        verify(r, all(r));
        need(munmap(r->at, r->pages * PAGE));
        me->operation++;
    }
    return 0;
}

// A kind that this machine does not have is left out, natively and far.
static void missing(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name) && kinds[i].weight) {
            kinds[i].weight = 0;
            printf("%s: not possible here\n", name);
        }
}

static void probe(void) {
    struct io_uring_params parameters = {0};
    int file = open("mixture-probe", O_RDWR | O_CREAT | O_DIRECT, 0600), ring = syscall(SYS_io_uring_setup, 2, &parameters);
    if (file < 0) {
        missing("direct");
        missing("uring");
        missing("registered");
    }
    if (ring < 0 || !(parameters.features & IORING_FEAT_SINGLE_MMAP)) {
        missing("uring");
        missing("registered");
    } else {
        struct iovec pinned = {workers[0].own.at, 128 * PAGE};
        if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &pinned, 1)) missing("registered");
    }
    if (geteuid()) missing("rights");
    close(file);
    close(ring);
    unlink("mixture-probe");
}

static void choose(int count, char **given) {
    for (int i = 3; i < count; i++) {
        if (!strncmp(given[i], "only=", 5)) only = given[i] + 5;
        else if (!strncmp(given[i], "without=", 8)) without = given[i] + 8;
        else count = 0;
    }
    int left = 0;
    for (int i = 0; i < KINDS; i++) {
        if ((only && !listed(only, kinds[i].name)) || listed(without, kinds[i].name)) kinds[i].weight = 0;
        left += kinds[i].weight;
    }
    if (count < 3 || !left) {
        printf("usage: mixture SEED OPERATIONS [only=LIST] [without=LIST]; kinds:");
        for (int i = 0; i < KINDS; i++) printf(" %s", kinds[i].name);
        printf("\n");
        exit(2);
    }
    seed = strtoul(given[1], 0, 0);
    operations = strtoul(given[2], 0, 0);
}

static void begin(void) {
    pthread_rwlockattr_t how;
    pthread_rwlockattr_init(&how);
    // Whoever wants the numbers to himself would wait for ever for the others otherwise.
    pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&descriptors, &how);
    // Several arenas of glibc open a file of /proc when they shrink.
    mallopt(M_ARENA_MAX, 1);
    for (int i = 0; i <= WORKERS; i++) {
        me = &workers[i];
        me->number = i;
        me->kind = i < WORKERS ? "beginning" : "pressure";
        me->state = seed * WORKERS + i;
        make(&me->own, "own", i < WORKERS ? 3072 : 20480);
        if (i == WORKERS) break;
        make(&me->other, "other", 1024);
        make(&me->moving, "moving", 512);
        make(&me->fresh, "fresh", 512);
        need(munmap(me->fresh.at, 512 * PAGE));
        rewrite(&me->own, all(&me->own));
        rewrite(&me->other, all(&me->other));
    }
    need(munmap(me->own.at, me->own.pages * PAGE));
    for (int i = 0; i < 4; i++) {
        pthread_mutex_init(&shared[i].lock, 0);
        make(&shared[i].region, "shared", 768);
        rewrite(&shared[i].region, all(&shared[i].region));
    }
    make(&ticked, "ticked", 1024);
    rewrite(&ticked, (struct range){1, ticked.pages - 1});
    make(&readonly, "readonly", 16384);
    rewrite(&readonly, all(&readonly));
    need(mprotect(readonly.at, readonly.pages * PAGE, PROT_READ));
}

static void finally(void) {
    u64 counted = 0, total[KINDS] = {0};
    for (size_t i = 0; i < WORDS; i++) counted += ((u64 *)ticked.at)[i];
    want(counted, ticks);
    verify(&ticked, (struct range){1, ticked.pages - 1});
    verify(&readonly, all(&readonly));
    for (int i = 0; i < 4; i++) verify(&shared[i].region, all(&shared[i].region));
    for (int i = 0; i < KINDS; i++) {
        for (int j = 0; j < WORKERS; j++) total[i] += workers[j].counts[i];
        if (total[i]) printf("%s %lu\n", kinds[i].name, total[i]);
    }
    printf("mixture: right\n");
    fflush(stdout);
}

int main(int count, char **given) {
    pthread_t threads[WORKERS + 1];
    utf8_here();
    choose(count, given);
    syscall(SYS_close_range, 3, ~0u, 0);
    begin();
    probe();
    fflush(stdout);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    need(sigaction(SIGALRM, &action, 0));
    if (!listed(without, "alarms")) every(10000);
    int pressed = !listed(without, "pressure");
    if (pressed) want(pthread_create(&threads[WORKERS], 0, press, &workers[WORKERS]), 0);
    for (int i = 0; i < WORKERS; i++) want(pthread_create(&threads[i], 0, work, &workers[i]), 0);
    for (int i = 0; i < WORKERS; i++) want(pthread_join(threads[i], 0), 0);
    over = 1;
    if (pressed) want(pthread_join(threads[WORKERS], 0), 0);
    struct itimerval never = {{0, 0}, {0, 0}};
    need(setitimer(ITIMER_REAL, &never, 0));
    finally();
    return 0;
}
