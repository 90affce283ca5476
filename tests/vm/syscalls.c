/*
 * syscalls [MIB]: the kernel itself touches far memory: read, write, writev, sendmsg, recvmsg, getcwd, futex.
 */
#define _GNU_SOURCE
#include "content.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHUNK (64UL << 10)

static uint64_t *mem;
static uint64_t pages;

/* Pushes everything else out by touching all of it. */
static void sweep(void)
{
    verify(mem, 0, pages, 1, "sweep");
}

static void file_calls(void)
{
    char path[] = "/tmp/hiroma-syscalls-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    unlink(path);
    char *far = (char *)mem, *back = (char *)map_words(8 * MIB);
    for (size_t at = 0; at < 8 * MIB; at += CHUNK)
        CHECK(pwrite(fd, far + at, CHUNK, (off_t)at) == (ssize_t)CHUNK);
    memset(back, 0x11, 8 * MIB);
    sweep();
    for (size_t at = 0; at < 8 * MIB; at += CHUNK)
        CHECK(pread(fd, back + at, CHUNK, (off_t)at) == (ssize_t)CHUNK);
    sweep();
    CHECK(memcmp(far, back, 8 * MIB) == 0);
    struct iovec parts[16];
    for (int i = 0; i < 16; i++)
        parts[i] = (struct iovec){ far + (size_t)i * 4 * MIB % (pages * PAGE) + 13, 4096 };
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(writev(fd, parts, 16) == 16 * 4096);
    sweep();
    CHECK(pread(fd, back, 16 * 4096, 0) == 16 * 4096);
    for (int i = 0; i < 16; i++)
        CHECK(memcmp(back + i * 4096, parts[i].iov_base, 4096) == 0);
    CHECK(munmap(back, 8 * MIB) == 0);
    close(fd);
}

static void socket_calls(void)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char *into = (char *)map_words(MIB);
    for (int i = 0; i < 8; i++) {
        sweep();
        char *from = (char *)mem + (size_t)i * 7 * MIB % (pages * PAGE);
        struct iovec out = { from, CHUNK }, in = { into + (size_t)i % 16 * CHUNK, CHUNK };
        struct msghdr send = { .msg_iov = &out, .msg_iovlen = 1 }, receive = { .msg_iov = &in, .msg_iovlen = 1 };
        CHECK(sendmsg(ends[0], &send, 0) == (ssize_t)CHUNK);
        CHECK(recvmsg(ends[1], &receive, MSG_WAITALL) == (ssize_t)CHUNK);
        CHECK(memcmp(from, in.iov_base, CHUNK) == 0);
        if (i % 4 == 0)
            CHECK(getcwd(into, MIB));
    }
    CHECK(munmap(into, MIB) == 0);
    close(ends[0]);
    close(ends[1]);
}

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int turn;
};

static void *other_thread(void *argument)
{
    struct shared *shared = argument;
    for (int i = 0; i < 5; i++) {
        CHECK(pthread_mutex_lock(&shared->mutex) == 0);
        while (shared->turn % 2 == 0)
            CHECK(pthread_cond_wait(&shared->changed, &shared->mutex) == 0);
        shared->turn++;
        CHECK(pthread_cond_signal(&shared->changed) == 0);
        CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    }
    return NULL;
}

/* Two threads take turns through a lock that lies in memory which has meanwhile gone far. */
static void futex_calls(void)
{
    struct shared *shared = (struct shared *)map_words(MIB);
    pthread_t thread;
    CHECK(pthread_mutex_init(&shared->mutex, NULL) == 0 && pthread_cond_init(&shared->changed, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, other_thread, shared) == 0);
    for (int i = 0; i < 5; i++) {
        sweep();
        CHECK(pthread_mutex_lock(&shared->mutex) == 0);
        shared->turn++;
        CHECK(pthread_cond_signal(&shared->changed) == 0);
        while (shared->turn % 2 == 1)
            CHECK(pthread_cond_wait(&shared->changed, &shared->mutex) == 0);
        CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(shared->turn == 10);
}

int main(int argc, char **argv)
{
    pages = argument(argc, argv, 1, 64) * MIB / PAGE;
    mem = map_words(pages * PAGE);
    fill(mem, 0, pages, 1);
    file_calls();
    socket_calls();
    futex_calls();
    puts("syscalls: right");
    return 0;
}
