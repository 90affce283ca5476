// The wait family: states, usage, errors, groups, interruption, children that are large, and what is asked without taking it away.
#include "behaviour.h"

static size_t bytes = 24 * MIB;
/* A child that was stopped and continues ends when this pipe has no writer any more. */
static int held[2] = {-1, -1};

static pid_t child(int code, int number) {
    pid_t pid = must(fork());
    if (pid) return pid;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    if (number) kill(getpid(), number);
    char byte;
    if (held[1] >= 0) {
        close(held[1]);
        if (read(held[0], &byte, 1)) _exit(98);
    }
    _exit(wrong(data, bytes, 1) ? 99 : code);
}

static void show(const char *what, long got, pid_t pid, const int *at) {
    int status = *at;
    int error = errno;
    if (got < 0) printf("%s: %s\n", what, strerror(error));
    else printf("%s: %s %s %d\n", what, got == pid ? "it" : got ? "other" : "none", WIFEXITED(status) ? "exited" : WIFSIGNALED(status) ? "killed" : WIFSTOPPED(status) ? "stopped" : "continued",
                WIFEXITED(status) ? WEXITSTATUS(status) : WIFSIGNALED(status) ? WTERMSIG(status) : WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
    fflush(stdout);
}

static volatile int alarms, reaped;
static void on_alarm(int number) { alarms++; }
static void on_child(int number) {
    int error = errno;
    while (waitpid(-1, 0, WNOHANG) > 0) reaped++;
    errno = error;
}

int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    thrash();
    int status = 0, none = 0;
    struct rusage usage;
    siginfo_t info = {0};
    pid_t pid = child(3, 0);
    show("wait", wait(&status), pid, &status);
    show("wait, no children", wait(&status), 0, &status);
    pid = child(0, SIGKILL);
    show("waitpid", waitpid(pid, &status, 0), pid, &status);
    show("waitpid again", waitpid(pid, &status, 0), pid, &status);
    pid = child(4, 0);
    show("wait3", wait3(&status, 0, &usage), pid, &status);
    printf("usage %s\n", usage.ru_maxrss > 1000 ? "has memory" : "is empty");
    pid = child(5, 0);
    show("wait4", wait4(pid, &status, 0, 0), pid, &status);
    pid = child(6, 0);
    printf("no status: %d\n", waitpid(pid, 0, 0) == pid);
    must(pipe(held));
    pid = child(7, SIGSTOP);
    show("stopped", waitpid(pid, &status, WUNTRACED), pid, &status);
    show("nothing new", waitpid(pid, &status, WNOHANG), 0, &none);
    kill(pid, SIGCONT);
    show("continued", waitpid(pid, &status, WCONTINUED), pid, &status);
    close(held[0]);
    close(held[1]);
    held[0] = held[1] = -1;
    show("and ended", waitpid(pid, &status, 0), pid, &status);
    pid = child(8, 0);
    for (int i = 0; i < 2; i++) {
        memset(&info, 0, sizeof info);
        long got = waitid(P_PID, pid, &info, WEXITED | (i ? 0 : WNOWAIT));
        printf("waitid %ld: %d %d %d\n", got, info.si_pid == pid, info.si_code == CLD_EXITED, info.si_status);
    }
    printf("waitid again: %d %s\n", waitid(P_PID, pid, &info, WEXITED), strerror(errno));
    pid = child(9, SIGKILL);
    printf("waitid, no place: %d\n", waitid(P_ALL, 0, 0, WEXITED));
    show("wrong options", waitpid(-1, &status, 77777), 0, &none);
    pid = must(fork());
    if (!pid) pause(), _exit(1);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, 0);
    alarm(1);
    show("interrupted", waitpid(pid, &status, 0), 0, &none);
    kill(pid, SIGTERM);
    show("later", waitpid(pid, &status, 0), pid, &status);
    // All at once, and reaped by a handler.
    signal(SIGCHLD, on_child);
    for (int i = 0; i < 6; i++) child(i, 0);
    for (int i = 0; i < 3000 && reaped < 6; i++) usleep(10000);
    printf("%d alarms, %d reaped\n", alarms, reaped);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
