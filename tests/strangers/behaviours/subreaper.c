// What a program waits for is only its own: no other children than it has started, and no signal of their end that it does not know.
#include "behaviour.h"
static volatile int ends;
static void child(int number) { ends++; }
int main(void) {
    size_t bytes = 64 * MIB;
    signal(SIGCHLD, child);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    printf("children: %s\n", waitpid(-1, 0, WNOHANG) == -1 && errno == ECHILD ? "none" : "some");
    printf("with __WALL: %s\n", waitpid(-1, 0, WNOHANG | __WALL) == -1 && errno == ECHILD ? "none" : "some");
    for (int i = 0; i < 3; i++) {
        pid_t pid = must(fork());
        if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
        int status;
        pid_t found;
        while ((found = waitpid(-1, &status, 0)) == -1 && errno == EINTR) {}
        printf("%s %d\n", found == pid ? "it" : "another", WEXITSTATUS(status));
    }
    printf("%d ends\n", ends);
    printf("children: %s\n", wait(0) == -1 && errno == ECHILD ? "none" : "some");
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
