// Programs that move their own arguments (PR_SET_MM, as service managers do), and read themselves in /proc.
#include "behaviour.h"

int main(void) {
    char *title = pages(16 * PAGE), text[64] = "";
    strcpy(title + PAGE, "another title");
    int moved = prctl(PR_SET_MM, PR_SET_MM_ARG_START, title + PAGE, 0, 0) == 0 || prctl(PR_SET_MM, PR_SET_MM_ARG_END, title + PAGE + 14, 0, 0) == 0;
    prctl(PR_SET_MM, PR_SET_MM_ARG_END, title + PAGE + 14, 0, 0);
    prctl(PR_SET_MM, PR_SET_MM_ARG_START, title + PAGE, 0, 0);
    prctl(PR_SET_MM, PR_SET_MM_ARG_END, title + PAGE + 14, 0, 0);
    if (!moved) skip("PR_SET_MM: %s", strerror(errno));
    thrash_by(64 * MIB);
    int file = must(open("/proc/self/cmdline", O_RDONLY));
    long got = must(read(file, text, 63));
    printf("%ld bytes: %.20s\n", got, text);
    // Mappings are found by name and by address.
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    u64 from, to;
    int covered = 0, smaps = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && from <= (u64)title && (u64)title < to) covered = !strcmp(rights, "rw-p");
    fclose(maps);
    maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) smaps += !strncmp(line, "Rss:", 4);
    printf("covered %d, smaps %d\n", covered, smaps > 3);
    return verdict();
}
