// Others read and write memory that is far: process_vm_readv and writev, ptrace, /proc/PID/mem. usage: peek vm|ptrace|mem|self
#include "behaviour.h"
#include <sys/ptrace.h>
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    int go[2], ready[2];
    must(pipe(go));
    must(pipe(ready));
    char *data = pages(bytes), *copy = pages(bytes), token = 1;
    if (!strcmp(given[1], "self")) {
        fill(data, bytes, 1);
        thrash();
        int file = must(open("/proc/self/mem", O_RDWR));
        size_t got = 0;
        while (got < bytes) {
            // Not past the end, where a read that stops at a far page would carry the next ones.
            size_t len = bytes - got < MIB ? bytes - got : MIB;
            long n = pread(file, copy + got, len, (off_t)(data + got));
            if (n <= 0) {
                printf("read: %s\n", strerror(errno));
                break;
            }
            got += n;
        }
        check("copy", wrong(copy, bytes, 1));
        return verdict();
    }
    pid_t pid = must(fork());
    if (pid == 0) {
        // So that the child ends if its parent does.
        close(go[1]);
        if (!strcmp(given[1], "ptrace")) must(ptrace(PTRACE_TRACEME, 0, 0, 0));
        fill(data, bytes, 1);
        thrash();
        if (!strcmp(given[1], "ptrace")) {
            raise(SIGSTOP);
        } else {
            must(write(ready[1], &token, 1));
            must(read(go[0], &token, 1));
        }
        thrash();
        size_t bad = wrong(data, bytes / 2, 1);
        for (size_t at = bytes / 2; at < bytes; at += PAGE) bad += *(u64 *)(data + at) != 0x1234567812345678ul;
        _exit(bad ? 1 : 4);
    }
    u64 mark = 0x1234567812345678ul;
    if (!strcmp(given[1], "ptrace")) {
        int status;
        must(waitpid(pid, &status, 0));
        size_t bad = 0;
        for (size_t at = 0; at < bytes; at += PAGE) bad += (u64)ptrace(PTRACE_PEEKDATA, pid, data + at, 0) != word(at / 8, 1);
        check("peeked", bad);
        for (size_t at = bytes / 2; at < bytes; at += PAGE) must(ptrace(PTRACE_POKEDATA, pid, data + at, mark));
        must(ptrace(PTRACE_DETACH, pid, 0, 0));
    } else if (!strcmp(given[1], "mem")) {
        char name[64];
        must(read(ready[0], &token, 1));
        sprintf(name, "/proc/%d/mem", pid);
        int file = must(open(name, O_RDWR));
        for (size_t at = 0; at < bytes; at += MIB)
            if (pread(file, copy + at, MIB, (off_t)(data + at)) != (long)MIB) printf("read at %zu: %s\n", at, strerror(errno));
        check("copy", wrong(copy, bytes, 1));
        for (size_t at = bytes / 2; at < bytes; at += PAGE) must(pwrite(file, &mark, 8, (off_t)(data + at)));
        must(write(go[1], &token, 1));
    } else {
        must(read(ready[0], &token, 1));
        struct iovec here = {copy, bytes}, there = {data, bytes};
        printf("%ld read\n", process_vm_readv(pid, &here, 1, &there, 1, 0));
        check("copy", wrong(copy, bytes, 1));
        for (size_t at = bytes / 2; at < bytes; at += PAGE) {
            struct iovec one = {&mark, 8}, two = {data + at, 8};
            must(process_vm_writev(pid, &one, 1, &two, 1, 0));
        }
        must(write(go[1], &token, 1));
    }
    printf("child %d\n", ended(pid));
    return verdict();
}
