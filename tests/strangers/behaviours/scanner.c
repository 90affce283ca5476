// A conservative collector or a leak checker: reads all of its writable mappings, as /proc/self/maps lists them, for a pointer.
// usage: scanner small|large
#include "behaviour.h"

static sigjmp_buf back;
static void handler(int number) { siglongjmp(back, 1); }

int main(int count, char **given) {
    char *data = 0, **place = malloc(100000), **far_place;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    far_place = (char **)pages(MIB);
    if (!strcmp(given[1], "large")) data = pages(64 * MIB), fill(data, 64 * MIB, 1), thrash();
    // Not in a register or a variable.
    u64 wanted = 0x1234500000000000ul + (u64)getpid() * 16 + 7;
    place[1000] = (char *)wanted, far_place[5000] = (char *)wanted;
    FILE *maps = fopen("/proc/self/maps", "r");
    static struct { u64 from, to; } all[100000];
    static char line[8192];
    int mappings = 0, found = 0;
    char rights[5], name[4096];
    while (fgets(line, sizeof line, maps)) {
        u64 from, to;
        name[0] = 0;
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095s", &from, &to, rights, name) >= 3 && rights[0] == 'r' && rights[1] == 'w' && strcmp(name, "[vvar]"))
            all[mappings].from = from, all[mappings++].to = to;
    }
    fclose(maps);
    time_t began = time(0);
    for (volatile int i = 0; i < mappings; i++)
        if (!sigsetjmp(back, 1))
            for (u64 *at = (u64 *)all[i].from; at < (u64 *)all[i].to; at++)
                if (*(volatile u64 *)at == wanted && (at == (u64 *)&place[1000] || at == (u64 *)&far_place[5000])) found++;
    printf("found %d, %s\n", found, time(0) - began < 20 ? "in time" : "late");
    if (data) check("memory", wrong(data, 64 * MIB, 1));
    return verdict();
}
