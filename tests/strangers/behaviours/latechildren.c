// Children that are stopped right after the fork and continued long after their parent has ended or executed something else.
#include "behaviour.h"

enum { CHILDREN = 24 };

static void parent(int i, char *data, int told, int tells) {
    pid_t child = must(fork());
    if (child == 0) {
        close(told);
        char byte = wrong(data, 4 * MIB, 1) ? 'x' : 'k';
        must(write(tells, &byte, 1));
        _exit(0);
    }
    if (i & 1) usleep(i * 5);
    must(kill(child, SIGSTOP));
    must(write(told, &child, sizeof child));
    if (i % 3 == 0) raise(SIGKILL);
    if (i % 3 == 1) execl("/bin/true", "true", NULL);
    _exit(0);
}

int main(void) {
    size_t bytes = 32 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    pid_t children[CHILDREN];
    int heard[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        int numbers[2], bytes_of[2];
        must(pipe(numbers));
        must(pipe(bytes_of));
        pid_t middle = must(fork());
        if (middle == 0) parent(i, data, numbers[1], bytes_of[1]);
        close(numbers[1]);
        close(bytes_of[1]);
        must(read(numbers[0], &children[i], sizeof(pid_t)));
        close(numbers[0]);
        heard[i] = bytes_of[0];
        must(waitpid(middle, NULL, 0));
    }
    sleep(8);
    check("memory", wrong(data, bytes, 1));
    int well = 0;
    for (int i = 0; i < CHILDREN; i++) {
        kill(children[i], SIGCONT);
        char byte = 0;
        must(read(heard[i], &byte, 1));
        well += byte == 'k';
    }
    printf("%d of %d children well\n", well, CHILDREN);
    return verdict();
}
