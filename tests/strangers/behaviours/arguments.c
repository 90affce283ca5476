// System calls whose pointers lead to far memory: vectors, messages, descriptors that are handed over, names, directories, sockets' options.
#include "behaviour.h"
#include <dirent.h>
#include <netinet/in.h>
#include <sys/inotify.h>
#include <sys/utsname.h>

static void *far(const void *content, size_t bytes) {
    char *at = pages(16 * PAGE);
    if (content) memcpy(at + 3 * PAGE - bytes / 2, content, bytes);
    return at + 3 * PAGE - bytes / 2;
}

int main(void) {
    char *name = far("arguments-file", 15), *other = far("arguments-link", 15), *buffer = far(0, 8192), *text = far("content of a file", 18);
    struct iovec *vector = far(&(struct iovec){text, 17}, sizeof *vector), *into = far(&(struct iovec){buffer, 17}, sizeof *into);
    struct msghdr *message = far(&(struct msghdr){.msg_iov = vector, .msg_iovlen = 1}, sizeof *message);
    char *control = far(0, CMSG_SPACE(sizeof(int)));
    struct stat *status = far(0, sizeof *status);
    struct utsname *system = far(0, sizeof *system);
    int *pair = far(0, 8), *value = far(&(int){65536}, 4);
    socklen_t *length = far(&(socklen_t){4}, 4);
    struct rlimit *limit = far(0, sizeof *limit);
    fd_set *set = far(0, sizeof *set);
    struct timeval *wait = far(&(struct timeval){1, 0}, sizeof *wait);
    thrash_by(64 * MIB);
    int file = must(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    printf("writev %ld\n", must(writev(file, vector, 1)));
    must(symlink(name, other));
    thrash_by(64 * MIB);
    long got = must(preadv(file, into, 1, 0));
    printf("preadv %ld %.17s\n", got, buffer);
    got = must(readlink(other, buffer, 4096));
    printf("readlink %ld %.14s\n", got, buffer);
    must(stat(other, status));
    must(uname(system));
    printf("stat %ld, uname %s\n", status->st_size, system->sysname);
    thrash_by(64 * MIB);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    message->msg_control = control;
    message->msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    *(int *)CMSG_DATA(head) = file;
    thrash_by(64 * MIB);
    printf("sendmsg %ld\n", must(sendmsg(pair[0], message, 0)));
    message->msg_iov = into;
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    FD_ZERO(set);
    FD_SET(pair[1], set);
    thrash_by(64 * MIB);
    printf("select %ld\n", must(select(pair[1] + 1, set, 0, 0, wait)));
    printf("recvmsg %ld\n", must(recvmsg(pair[1], message, 0)));
    int handed = *(int *)CMSG_DATA(CMSG_FIRSTHDR(message));
    printf("handed over: %ld\n", must(pread(handed, buffer, 17, 0)));
    fflush(stdout);
    thrash_by(64 * MIB);
    must(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, value, 4));
    must(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, value, length));
    printf("option %d of %u\n", *value, *length);
    thrash_by(64 * MIB);
    must(getrlimit(RLIMIT_CORE, limit));
    must(setrlimit(RLIMIT_CORE, limit));
    int watch = must(inotify_init1(0)), place = must(open(".", O_RDONLY | O_DIRECTORY)), entries = 0;
    must(inotify_add_watch(watch, far(".", 2), IN_CREATE));
    thrash_by(64 * MIB);
    while ((got = must(syscall(SYS_getdents64, place, buffer, 8192))) > 0)
        for (long at = 0; at < got; at += *(unsigned short *)(buffer + at + 16)) entries += !strncmp(buffer + at + 19, "arguments-", 10);
    printf("entries %d\n", entries);
    must(rename(name, far("arguments-new", 14)));
    must(unlink(other));
    must(unlink("arguments-new"));
    printf("gone %d\n", access(name, F_OK));
    fflush(stdout);
    char **list = far(((char *[]){far("/bin/echo", 10), far("far words", 10), 0}), 24);
    pid_t pid = must(fork());
    if (pid == 0) {
        thrash_by(64 * MIB);
        execv(list[0], list);
        _exit(127);
    }
    printf("child %d\n", ended(pid));
    return verdict();
}
