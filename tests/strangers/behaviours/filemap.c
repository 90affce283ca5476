// A file is mapped privately and changed in memory: the changes stay there, the file stays as it was.
#include "behaviour.h"
int main(void) {
    size_t bytes = 32 * MIB;
    int file = must(open("private", O_RDWR | O_CREAT | O_TRUNC, 0600));
    must(ftruncate(file, bytes));
    char *all = (char *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    fill(all, bytes, 1);
    char *mine = (char *)must(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
    char *data = pages(64 * MIB);
    fill(data, 64 * MIB, 5);
    fill(mine, bytes / 2, 2);
    thrash();
    check("changed", wrong(mine, bytes / 2, 2));
    check("file", wrong(all, bytes, 1));
    pid_t pid = must(fork());
    if (pid == 0) {
        fill(mine, bytes / 2, 3);
        thrash();
        _exit(wrong(mine, bytes / 2, 3) ? 1 : 4);
    }
    printf("child %d\n", ended(pid));
    check("changed", wrong(mine, bytes / 2, 2));
    check("memory", wrong(data, 64 * MIB, 5));
    unlink("private");
    return verdict();
}
