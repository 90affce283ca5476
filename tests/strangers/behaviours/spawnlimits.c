// Limits that a program sets for itself are those of the programs that it starts: by system, popen, posix_spawn, fork and vfork.
#include "behaviour.h"
#include <spawn.h>
extern char **environ;

static void all(const char *when) {
    char *command[] = {"sh", "-c", "echo spawn $(ulimit -S -v) $(ulimit -S -d) $(ulimit -S -f)", 0};
    pid_t pid;
    printf("%s\n", when);
    fflush(stdout);
    system("echo system $(ulimit -S -v) $(ulimit -S -d) $(ulimit -S -f)");
    FILE *lines = popen("echo popen $(ulimit -S -v) $(ulimit -S -d) $(ulimit -S -f)", "r");
    char line[128] = "";
    if (fgets(line, sizeof line, lines)) printf("%s", line);
    pclose(lines);
    fflush(stdout);
    if (!posix_spawn(&pid, "/bin/sh", 0, 0, command, environ)) ended(pid);
    if (!posix_spawnp(&pid, "sh", 0, 0, command, environ)) ended(pid);
    command[2] = "echo fork $(ulimit -S -v) $(ulimit -S -d) $(ulimit -S -f)";
    if (!(pid = must(fork()))) _exit(execve("/bin/sh", command, environ));
    ended(pid);
    if (!(pid = vfork())) _exit(execve("/bin/sh", command, environ));
    ended(pid);
}

int main(void) {
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 1);
    all("as they were");
    must(setrlimit(RLIMIT_AS, &(struct rlimit){4ul << 30, RLIM_INFINITY}));
    must(setrlimit(RLIMIT_DATA, &(struct rlimit){2ul << 30, RLIM_INFINITY}));
    must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1ul << 30, RLIM_INFINITY}));
    all("set");
    thrash();
    must(setrlimit(RLIMIT_AS, &(struct rlimit){3ul << 30, RLIM_INFINITY}));
    all("lower");
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
