// A program forbids itself all files (Landlock), before or after it uses much memory.
// Its children, and theirs, write more than the limit.
#include "behaviour.h"
#include <linux/landlock.h>

enum { BYTES = 96 * MIB };

static void forbid_files(void) {
    struct landlock_ruleset_attr attr = {.handled_access_fs = (1ul << 13) - 1};
    int rules = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (rules < 0) skip("Landlock: %s", strerror(errno));
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(syscall(SYS_landlock_restrict_self, rules, 0));
    close(rules);
    check("files", open("/var/tmp", O_RDONLY) >= 0);
}

static void fork_two(char *at, u64 salt, int depth) {
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = must(fork());
        if (children[i]) continue;
        u64 own = salt * 10 + i + 1;
        size_t bad = wrong(at, BYTES, salt);
        fill(at, BYTES, own);
        if (depth) fork_two(at, own, depth - 1);
        bad += wrong(at, BYTES, own);
        _exit(bad || failures ? 1 : 0);
    }
    for (int i = 0; i < 2; i++) {
        int status = ended(children[i]);
        if (status) {
            printf("child: %d\n", status);
            failures++;
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1) forbid_files();
    char *at = pages(BYTES);
    fill(at, BYTES, 3);
    if (argc == 1) forbid_files();
    for (int i = 0; i < 2; i++) fork_two(at, 3, 1);
    check("parent", wrong(at, BYTES, 3));
    return verdict();
}
