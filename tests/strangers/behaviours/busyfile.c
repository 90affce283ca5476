// Programs whose file is overwritten in place as soon as they have ended, or have become another one.
#include "behaviour.h"

static void copy(const char *from, const char *to) {
    char block[65536];
    unlink(to);
    int in = must(open(from, O_RDONLY)), out = must(open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755));
    for (long n; (n = must(read(in, block, sizeof block))) > 0;) must(write(out, block, n));
    close(in), close(out);
}

// Opens a file for writing; the kernel itself may have its memory for a moment longer.
static int opened(const char *name) {
    int file = -1;
    for (int i = 0; i < 4 && (file = open(name, O_WRONLY)) < 0 && errno == ETXTBSY; i++) usleep(500);
    return file;
}

int main(int count, char **given) {
    size_t bytes = 48 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    if (count > 1 && !strcmp(given[1], "end")) return wrong(data, bytes, 1) != 0;
    if (count > 1 && !strcmp(given[1], "become")) {
        // The next one overwrites the file of this one.
        execl(given[2], given[2], "overwrite", given[0], (char *)0);
        return 98;
    }
    if (count > 1 && !strcmp(given[1], "overwrite")) {
        int file = opened(given[2]);
        return file < 0 ? errno == ETXTBSY ? 50 : 51 : 4;
    }
    int busy = 0, became = 0;
    char here[4096] = "";
    must(readlink("/proc/self/exe", here, sizeof here - 1));
    for (int i = 0; i < 10; i++) {
        copy("/proc/self/exe", "tool");
        pid_t pid = must(vfork());
        if (!pid) _exit(execl("./tool", "./tool", "end", (char *)0));
        printf("%d", ended(pid));
        int file = opened("tool");
        busy += file < 0;
        close(file);
    }
    for (int i = 0; i < 10; i++) {
        copy("/proc/self/exe", "other");
        pid_t pid = must(vfork());
        if (!pid) _exit(execl("./other", "./other", "become", here, (char *)0));
        became += ended(pid) != 4;
        unlink("other");
    }
    printf("\n%d busy after the end, %d after the next program has begun\n", busy, became);
    return verdict();
}
