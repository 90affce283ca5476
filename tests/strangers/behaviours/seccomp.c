// A child allows itself hardly any system call (strict: read, write and exit; or a filter), and works with memory that is far.
#include "behaviour.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes), *other = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    for (int i = 0; i < 2; i++) {
        pid_t pid = must(fork());
        if (pid == 0) {
            if (!strcmp(given[1], "strict")) {
                must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
            } else {
                int kill = !strcmp(given[1], "kill");
                struct sock_filter filter[] = {
                    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
                    BPF_STMT(BPF_RET | BPF_K, kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM),
                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                };
                struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
                must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
                must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
            }
            size_t bad = 0;
            for (int round = 0; round < 2; round++) {
                bad += wrong(data, bytes, 1);
                fill(other, bytes, 3 + round);
                bad += wrong(other, bytes, 3 + round);
            }
            if (write(1, bad ? "bad\n" : "good\n", bad ? 4 : 5) < 0) bad++;
            syscall(SYS_exit, bad ? 1 : 4);
        }
        printf("child %d\n", ended(pid));
        fflush(stdout);
    }
    check("parent", wrong(data, bytes, 1));
    return verdict();
}
