// What a forked child's kernel and C library write to far memory before the child does anything: thread ids, variables of other threads. usage: forkfirst clone|raw|three|threads
#include "behaviour.h"
#include <linux/sched.h>

enum { THREADS = 8, WORDS = 256 };
static char *data;
static size_t bytes = 16 * MIB;
static int *tid;
static __thread u64 variables[WORDS];
static u64 *variables_of[THREADS];
static int go[2];

// The page of the thread id, without the word that the kernel writes.
static size_t wrong_around(void) {
    size_t first = ((char *)tid - data) / PAGE * PAGE / 8, written = ((char *)tid - data) / 8, bad = 0;
    for (size_t i = first; i < first + PAGE / 8; i++) bad += i != written && ((u64 *)data)[i] != word(i, 1);
    return bad;
}

static int in_child(void *given) {
    printf("thread id %s\n", *tid == getpid() ? "right" : "wrong");
    check("in the child, around it", wrong_around());
    check("in the child, before it", wrong(data, bytes / 2, 1));
    _exit(verdict());
}

static void thread_id(const char *how) {
    char *stack = pages(MIB);
    data = pages(bytes);
    fill(data, bytes, 1);
    tid = (int *)(data + bytes / 2 + 128);
    evict(data, bytes);
    pid_t pid;
    if (!strcmp(how, "clone")) {
        pid = must(clone(in_child, stack + MIB, SIGCHLD | CLONE_CHILD_SETTID, 0, 0, 0, tid));
    } else if (!strcmp(how, "raw")) {
        pid = must(syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID, 0, 0, tid, 0));
        if (pid == 0) in_child(0);
    } else {
        struct clone_args args = {.flags = CLONE_CHILD_SETTID, .exit_signal = SIGCHLD, .child_tid = (u64)tid};
        pid = must(syscall(SYS_clone3, &args, sizeof args));
        if (pid == 0) in_child(0);
    }
    printf("child %d\n", ended(pid));
    check("in the parent, around it", wrong_around());
}

static void *waits(void *given) {
    long me = (long)given;
    for (int i = 0; i < WORDS; i++) variables[i] = word(i, 100 + me);
    __atomic_store_n(&variables_of[me], variables, __ATOMIC_RELEASE);
    char byte;
    must(read(go[0], &byte, 1));
    return 0;
}

static size_t wrong_variables(void) {
    size_t bad = 0;
    for (int k = 0; k < THREADS; k++) bad += wrong(variables_of[k], sizeof variables, 100 + k);
    return bad;
}

// Threads whose stacks are the program's: the C library walks their control blocks, which are beside their variables.
static void of_threads(void) {
    pthread_t threads[THREADS];
    char *stacks = pages(THREADS * MIB);
    must(pipe(go));
    for (long k = 0; k < THREADS; k++) {
        pthread_attr_t how;
        pthread_attr_init(&how);
        pthread_attr_setstack(&how, stacks + k * MIB, MIB);
        pthread_create(&threads[k], &how, waits, (void *)k);
    }
    for (int k = 0; k < THREADS; k++)
        while (!__atomic_load_n(&variables_of[k], __ATOMIC_ACQUIRE)) usleep(1000);
    // Until all of them sleep in the kernel.
    usleep(100000);
    evict(stacks, THREADS * MIB);
    pid_t pid = must(fork());
    if (pid == 0) {
        check("in the child, variables of threads", wrong_variables());
        _exit(verdict());
    }
    printf("child %d\n", ended(pid));
    check("in the parent, variables of threads", wrong_variables());
    must(write(go[1], "12345678", THREADS));
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], 0);
}

int main(int count, char **given) {
    if (strcmp(given[1], "threads")) thread_id(given[1]);
    else of_threads();
    return verdict();
}
