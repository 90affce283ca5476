// A tracer that follows forks and clones of one process, and waits for that process alone; it steps through a part, too.
#include "behaviour.h"
#include <sys/ptrace.h>
#include <sys/user.h>

static void work(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    raise(SIGUSR1);
    size_t bad = wrong(data, bytes, 1);
    raise(SIGUSR2);
    char *more = malloc(bytes);
    fill(more, bytes, 2);
    _exit(bad + wrong(more, bytes, 2) + wrong(data, bytes, 1) ? 1 : 4);
}

int main(void) {
    pid_t pid = must(fork());
    if (!pid) {
        must(ptrace(PTRACE_TRACEME, 0, 0, 0));
        raise(SIGSTOP);
        work();
    }
    int status, clones = 0, signals = 0, steps = 0;
    must(waitpid(pid, &status, 0));
    must(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL));
    must(ptrace(PTRACE_CONT, pid, 0, 0));
    for (;;) {
        must(waitpid(pid, &status, 0));
        if (!WIFSTOPPED(status)) break;
        int number = WSTOPSIG(status), event = status >> 16, pass = 0;
        clones += event != 0;
        if (number == SIGUSR1) signals++;
        else if (number == SIGUSR2) signals += 10, steps = 3000;
        else if (number != SIGTRAP) pass = number;
        if (steps > 0) steps--, must(ptrace(PTRACE_SINGLESTEP, pid, 0, pass));
        else must(ptrace(PTRACE_CONT, pid, 0, pass));
    }
    printf("%d signals, %d clones\n", signals, clones);
    printf("ended %d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    return verdict();
}
