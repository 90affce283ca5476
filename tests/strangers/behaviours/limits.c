// Works, forks and starts threads under limits that the harness sets by ulimit, or that it sets itself. usage: limits [nofile|as|data|fsize]
#include "behaviour.h"
static void *thread(void *data) { return (void *)wrong(data, 32 * MIB, 1); }
static volatile int toolarge;
static void onfsize(int number) { toolarge++; }
int main(int count, char **given) {
    size_t bytes = 64 * MIB;
    const char *what = count > 1 ? given[1] : "";
    struct rlimit limit;
    if (!strcmp(what, "nofile")) limit.rlim_cur = limit.rlim_max = 16, must(setrlimit(RLIMIT_NOFILE, &limit));
    if (!strcmp(what, "as")) limit.rlim_cur = limit.rlim_max = 4ul << 30, must(setrlimit(RLIMIT_AS, &limit));
    if (!strcmp(what, "data")) limit.rlim_cur = limit.rlim_max = 1ul << 30, must(setrlimit(RLIMIT_DATA, &limit));
    if (!strcmp(what, "fsize")) limit.rlim_cur = limit.rlim_max = 1ul << 20, must(setrlimit(RLIMIT_FSIZE, &limit));
    char *data = pages(bytes);
    fill(data, bytes, 1);
    thrash();
    must(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_cur <= 16) {
        int opened = 0;
        while (open("/dev/null", O_RDONLY) >= 0) opened++;
        printf("files: %s, %s\n", opened >= 5 ? "several" : "too few", errno == EMFILE ? "then none" : "another error");
    }
    must(getrlimit(RLIMIT_FSIZE, &limit));
    if (limit.rlim_cur != RLIM_INFINITY) {
        signal(SIGXFSZ, onfsize);
        int file = open("big", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        size_t written = 0;
        for (long n; (n = write(file, data, 65536)) > 0;) written += n;
        printf("%zu written, %d\n", written, toolarge);
    }
    must(getrlimit(RLIMIT_AS, &limit));
    if (limit.rlim_cur != RLIM_INFINITY) printf("mmap of 8 GiB: %s\n", mmap(0, 8ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? "fails" : "works");
    fflush(stdout);
    pid_t pid = must(fork());
    if (pid == 0) _exit(wrong(data, bytes, 1) ? 1 : 4);
    printf("child %d\n", ended(pid));
    thrash();
    pthread_t one;
    void *bad = 0;
    if (pthread_create(&one, 0, thread, data)) printf("no thread\n");
    else pthread_join(one, &bad);
    check("thread", (size_t)bad);
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
