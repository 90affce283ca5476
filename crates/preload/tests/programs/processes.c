// fork with data in both, forks of forks, fork while other threads allocate, fork by system call, exec, vfork, posix_spawn.
#include "check.h"
#include <spawn.h>

extern char **environ;

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void both_keep_their_data(pid_t (*fork_now)(void)) {
    size_t len = 24 * MIB;
    char *mapped = map_rw(len), *block = malloc(len);
    char *small[1000];
    fill(mapped, len, 1);
    fill(block, len, 2);
    for (int i = 0; i < 1000; i++) fill(small[i] = malloc(8 + i), 8 + i, i);
    pid_t child = fork_now();
    if (child == 0) {
        CHECK(is_filled(mapped, len, 1) && is_filled(block, len, 2));
        fill(mapped, len, 3);
        free(block);
        for (int i = 0; i < 1000; i++) {
            CHECK(is_filled(small[i], 8 + i, i));
            free(small[i]);
        }
        block = malloc(len);
        fill(block, len, 4);
        char *more = map_rw(len);
        CHECK(is_managed(more) && is_zero(more, len));
        CHECK(is_filled(mapped, len, 3) && is_filled(block, len, 4));
        _exit(0);
    }
    CHECK(child > 0);
    fill(block, len, 5);
    wait_for(child);
    CHECK(is_filled(mapped, len, 1) && is_filled(block, len, 5));
    for (int i = 0; i < 1000; i++) {
        CHECK(is_filled(small[i], 8 + i, i));
        free(small[i]);
    }
    free(block);
    CHECK(munmap(mapped, len) == 0);
}

static pid_t raw_fork(void) {
    return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void generations(void) {
    char *data = map_rw(1 * MIB);
    for (int depth = 0; depth < 4; depth++) {
        fill(data, 1 * MIB, depth);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            wait_for(child);
            CHECK(is_filled(data, 1 * MIB, depth));
            if (depth > 0) _exit(0);
            return;
        }
        CHECK(is_filled(data, 1 * MIB, depth));
    }
    _exit(0);
}

static volatile int stop;

static void *allocate_all_the_time(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    while (!stop) {
        size_t size = mix(seed++) % (300 * KIB) + 8;
        char *p = malloc(size), *q = map_rw(256 * KIB);
        fill(p, size, seed);
        q[0] = 1;
        CHECK(is_filled(p, size, seed) && munmap(q, 256 * KIB) == 0);
        free(p);
    }
    return NULL;
}

static void forks_while_threads_allocate(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, allocate_all_the_time, (void *)(i * 1000)) == 0);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            char *p = malloc(1 * MIB), *q = map_rw(1 * MIB);
            fill(p, 1 * MIB, i);
            fill(q, 1 * MIB, i);
            CHECK(is_filled(p, 1 * MIB, i) && is_filled(q, 1 * MIB, i));
            _exit(0);
        }
        wait_for(child);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void other_programs_start(char *self) {
    char *arguments[] = {self, "child", NULL};
    pid_t child = fork();
    if (child == 0) {
        execv(self, arguments);
        _exit(2);
    }
    wait_for(child);
    child = vfork();
    if (child == 0) {
        execv(self, arguments);
        _exit(2);
    }
    wait_for(child);
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    wait_for(child);
    CHECK(system("exit 7") == 7 << 8);
    FILE *pipe = popen("echo far", "r");
    char line[10] = "";
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "far\n") == 0 && pclose(pipe) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        char *p = malloc(1 * MIB);
        CHECK(is_managed(p));
        fill(p, 1 * MIB, 1);
        return is_filled(p, 1 * MIB, 1) ? 0 : 1;
    }
    both_keep_their_data(fork);
    both_keep_their_data(raw_fork);
    generations();
    forks_while_threads_allocate();
    other_programs_start(argv[0]);
    puts("ok");
}
