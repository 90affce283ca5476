// Children whose process group is stopped right after the fork, and which are continued alone.
#include "behaviour.h"

// Waits for a change of the child's state, but not for ever: what is stopped may stay so.
static int changed(pid_t child, int flags) {
    int status = 0;
    for (int i = 0; i < 20000; i++) {
        if (must(waitpid(child, &status, flags | WNOHANG)) == child) return status;
        usleep(1000);
    }
    printf("the child does not %s\n", flags ? "stop" : "go on");
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    must(waitpid(child, &status, 0));
    fflush(stdout);
    _exit(1);
}

int main(void) {
    size_t bytes = 32 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    int stopped = 0, well = 0;
    for (int i = 0; i < 300; i++) {
        int go[2];
        must(pipe(go));
        pid_t child = must(fork());
        if (child == 0) {
            close(go[1]);
            char byte;
            must(read(go[0], &byte, 1));
            _exit(wrong(data, MIB, 1) ? 1 : 4);
        }
        close(go[0]);
        must(setpgid(child, child));
        usleep(i * 37 % 4000);
        must(kill(-child, SIGSTOP));
        stopped += WIFSTOPPED(changed(child, WUNTRACED));
        must(kill(child, SIGCONT));
        close(go[1]);
        well += WEXITSTATUS(changed(child, 0)) == 4;
    }
    printf("stopped %d, well %d\n", stopped, well);
    return verdict();
}
