// posix_spawn, popen and system from a large program, with output that comes back.
#include "behaviour.h"
#include <spawn.h>
extern char **environ;
int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    for (int i = 0; i < 3; i++) {
        thrash();
        int ends[2];
        must(pipe(ends));
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
        posix_spawn_file_actions_addclose(&actions, ends[0]);
        char *command[] = {"sh", "-c", "echo from the child; exit 7", 0};
        pid_t pid;
        printf("spawn %d\n", posix_spawnp(&pid, "sh", &actions, 0, command, environ));
        close(ends[1]);
        char text[64] = "";
        must(read(ends[0], text, 63));
        close(ends[0]);
        printf("%s%d\n", text, ended(pid));
    }
    FILE *pipe = popen("echo popen; exit 3", "r");
    char line[64] = "";
    fgets(line, 64, pipe);
    printf("%s%d\n", line, WEXITSTATUS(pclose(pipe)));
    fflush(stdout);
    printf("%d\n", WEXITSTATUS(system("echo system; exit 4")));
    check("parent", wrong(data, bytes, 1));
    return verdict();
}
