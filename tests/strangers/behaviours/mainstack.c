// The main stack grows to tens of MiB, and its limits are looked up: pthread_getattr_np, /proc/self/maps, RLIMIT_STACK.
#include "behaviour.h"

static char *lowest;
__attribute__((noinline)) static long deep(int left, char *above) {
    char here[8192];
    memset(here, left, sizeof here);
    if (here < lowest) lowest = here;
    long sum = left ? deep(left - 1, here) : 0;
    return sum + here[left % 8192] + (above != 0);
}

int main(void) {
    must(setrlimit(RLIMIT_STACK, &(struct rlimit){64 * MIB, RLIM_INFINITY}));
    char *data = pages(64 * MIB), local;
    fill(data, 64 * MIB, 1);
    thrash();
    lowest = &local;
    long first = deep(4000, &local);
    thrash();
    printf("%s\n", first == deep(4000, &local) ? "the same" : "another sum");
    pthread_attr_t attributes;
    void *start;
    size_t len;
    printf("getattr %d\n", pthread_getattr_np(pthread_self(), &attributes));
    pthread_attr_getstack(&attributes, &start, &len);
    printf("inside %d, lowest inside %d, %zu MiB\n", (char *)start <= &local && &local < (char *)start + len, (char *)start <= lowest, (len + MIB / 2) / MIB);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int stacks = 0, heaps = 0;
    u64 from, to;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &from, &to) == 2) stacks += from <= (u64)lowest && (u64)&local < to;
        else heaps += strstr(line, "[heap]") != 0;
    fclose(maps);
    printf("stack in maps %d\n", stacks);
    check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
