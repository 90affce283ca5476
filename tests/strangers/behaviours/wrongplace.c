// System calls with addresses that cannot be accessed fail with EFAULT; a break below the start of the heap.
#include "behaviour.h"
#include <linux/sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static void report(const char *what, long outcome) { printf("%s: %ld, %s\n", what, outcome, outcome == -1 ? strerror(errno) : ""); }
#define TRY(what, call) errno = 0, report(what, (long)(call))

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    char *wrong = mmap(0, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *far = pages(4 * PAGE);
    // A structure whose end cannot be read.
    char *edge = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mprotect(edge + PAGE, PAGE, PROT_NONE));
    edge += PAGE - 16;
    thrash_by(64 * MIB);
    TRY("clone3", syscall(SYS_clone3, wrong, 88));
    TRY("clone3 at the edge", syscall(SYS_clone3, edge, 88));
    TRY("clone3 that is too short", syscall(SYS_clone3, far, 16));
    TRY("clone3 that is too long", syscall(SYS_clone3, far, 1 << 20));
    struct clone_args fork = {.exit_signal = SIGCHLD, .flags = CLONE_PIDFD, .pidfd = (uintptr_t)wrong};
    TRY("clone3 with a wrong place for the descriptor", syscall(SYS_clone3, &fork, sizeof fork));
    fork = (struct clone_args){.exit_signal = 64 + 200};
    TRY("clone3 with a wrong signal", syscall(SYS_clone3, &fork, sizeof fork));
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        TRY("setrlimit", syscall(SYS_setrlimit, resource, wrong));
        TRY("getrlimit", syscall(SYS_getrlimit, resource, wrong));
        TRY("prlimit, new", prlimit(0, resource, (void *)wrong, 0));
        TRY("prlimit, old", prlimit(0, resource, 0, (void *)wrong));
        TRY("prlimit at the edge", prlimit(0, resource, (void *)(edge + 8), 0));
    }
    int pair[2];
    must(pipe(pair));
    must(write(pair[1], far, 64));
    TRY("readv", readv(pair[0], (void *)wrong, 2));
    TRY("readv at the edge", readv(pair[0], (void *)edge, 2));
    struct iovec into = {wrong, 8};
    TRY("readv into", readv(pair[0], &into, 1));
    TRY("writev from", writev(pair[1], &into, 1));
    TRY("read into", read(pair[0], wrong, 8));
    TRY("write from", write(pair[1], wrong, 8));
    TRY("process_vm_readv", process_vm_readv(getpid(), (void *)wrong, 1, &into, 1, 0));
    TRY("pipe", pipe((void *)wrong));
    TRY("epoll_ctl", epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, pair[0], (void *)wrong));
    TRY("sigaction, new", syscall(SYS_rt_sigaction, SIGUSR1, wrong, 0, 8));
    TRY("sigaction, old", syscall(SYS_rt_sigaction, SIGUSR1, 0, wrong, 8));
    TRY("sigprocmask, new", syscall(SYS_rt_sigprocmask, SIG_BLOCK, wrong, 0, 8));
    TRY("sigprocmask, old", syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, wrong, 8));
    TRY("sigaltstack", sigaltstack((void *)wrong, 0));
    TRY("sigpending", sigpending((void *)wrong));
    TRY("nanosleep", nanosleep((void *)wrong, 0));
    TRY("open", open(wrong, O_RDONLY));
    TRY("stat", syscall(SYS_stat, wrong, far));
    TRY("execve", execve(wrong, 0, 0));
    TRY("execve, arguments", execve("/bin/true", (char **)wrong, 0));
    TRY("execveat", syscall(SYS_execveat, -100, wrong, 0, 0, 0));
    TRY("futex", syscall(SYS_futex, wrong, 0, 0, 0, 0, 0));
    TRY("mincore", mincore(far, PAGE, (void *)wrong));
    TRY("set name", prctl(PR_SET_NAME, wrong, 0, 0, 0));
    TRY("seccomp", prctl(PR_SET_SECCOMP, 2, wrong, 0, 0));
    TRY("getcwd", syscall(SYS_getcwd, wrong, 100));
    pid_t child = must(vfork());
    if (!child) _exit(3);
    TRY("wait4, status", wait4(child, (void *)wrong, 0, 0));
    child = must(vfork());
    if (!child) _exit(3);
    TRY("waitid", waitid(P_PID, child, (void *)wrong, WEXITED | WNOWAIT));
    TRY("waitid, none", waitid(P_PID, child, 0, WEXITED));
    char *start = sbrk(0);
    TRY("brk below", brk(start - 64 * MIB));
    TRY("still there", (char *)sbrk(0) == start);
    TRY("sbrk below", (char *)sbrk(-64 * (long)MIB) == start);
    TRY("still there", (char *)sbrk(0) == start);
    TRY("brk above", brk((void *)-1L));
    return 0;
}
