// System calls whose arguments and results are structures in far memory.
#include "behaviour.h"
#include <dirent.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <linux/futex.h>
#include <netinet/in.h>

enum { SLOTS = 64 };
static char *area;
static int next;

// A page for itself, straddled by what is placed at its end.
static void *slot(size_t bytes) { return area + (2 * next++ + 1) * PAGE - bytes / 2 / 8 * 8; }

#define far(type) ((type *)slot(sizeof(type)))
#define gone() evict(area, 2 * (SLOTS + 1) * PAGE)
#define show(call) (gone(), errno = 0, printf("%s: ", #call), fflush(stdout), result((long)(call)))

static void result(long value) {
    if (value == -1) printf("%s\n", strerror(errno));
    else printf("%s\n", value ? "positive" : "0");
    fflush(stdout);
}

static void files(void) {
    char *name = slot(32), *text = slot(64), *link = slot(64);
    strcpy(name, "farargs-file"), strcpy(text, "a text that is written"), strcpy(link, "farargs-link");
    int file = (gone(), must(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600)));
    show(write(file, text, 23));
    show(pwrite(file, text, 23, 100));
    struct stat *status = far(struct stat);
    show(fstat(file, status));
    show(stat(name, status));
    printf("%ld bytes\n", (long)status->st_size);
    struct statfs *system = far(struct statfs);
    show(fstatfs(file, system));
    show(symlink(name, link));
    show(readlink(link, text, 64));
    printf("%.12s\n", text);
    struct timespec *times = slot(2 * sizeof *times);
    times[0] = (struct timespec){1000, 1}, times[1] = (struct timespec){2000, 2};
    show(utimensat(AT_FDCWD, name, times, 0));
    struct flock *lock = far(struct flock);
    *lock = (struct flock){.l_type = F_WRLCK};
    show(fcntl(file, F_SETLK, lock));
    show(fcntl(file, F_GETLK, lock));
    off_t *offset = far(off_t);
    *offset = 100;
    int other = must(open(link, O_RDWR));
    show(copy_file_range(file, offset, other, 0, 10, 0));
    show(sendfile(other, file, offset, 5));
    show(getcwd(text, 3) == 0 ? -1 : 0);
    show(unlink(name));
    show(unlink(link));
    int dir = must(open("/proc/self", O_RDONLY | O_DIRECTORY));
    show(syscall(SYS_getdents64, dir, slot(1024), 1024));
    close(dir), close(file), close(other);
}

static void waits(void) {
    int *ends = slot(8);
    show(pipe(ends));
    show(write(ends[1], "x", 1));
    struct pollfd *polls = far(struct pollfd);
    *polls = (struct pollfd){ends[0], POLLIN, 0};
    show(poll(polls, 1, 1000));
    fd_set *set = far(fd_set);
    FD_ZERO(set);
    FD_SET(ends[0], set);
    struct timeval *timeout = far(struct timeval);
    *timeout = (struct timeval){1, 0};
    show(select(ends[0] + 1, set, 0, 0, timeout));
    int epoll = must(epoll_create1(0));
    struct epoll_event *event = far(struct epoll_event);
    *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 42};
    show(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], event));
    event->data.u64 = 0;
    show(epoll_wait(epoll, event, 1, 1000));
    printf("%d\n", (int)event->data.u64);
    u64 *count = far(u64);
    struct itimerspec *timer = far(struct itimerspec);
    int clock = must(timerfd_create(CLOCK_MONOTONIC, 0));
    *timer = (struct itimerspec){{0, 0}, {0, 1000}};
    show(timerfd_settime(clock, 0, timer, 0));
    show(read(clock, count, 8));
    sigset_t *signals = far(sigset_t);
    sigemptyset(signals), sigaddset(signals, SIGUSR1);
    show(sigprocmask(SIG_BLOCK, signals, 0));
    raise(SIGUSR1);
    siginfo_t *info = far(siginfo_t);
    show(sigwaitinfo(signals, info));
    printf("signal %d\n", info->si_signo);
    raise(SIGUSR1);
    show(sigpending(signals));
    sigemptyset(signals), sigaddset(signals, SIGUSR1);
    int signal_file = (gone(), must(signalfd(-1, signals, 0)));
    show(read(signal_file, slot(sizeof(struct signalfd_siginfo)), sizeof(struct signalfd_siginfo)));
    struct timespec *some = far(struct timespec);
    *some = (struct timespec){0, 1000};
    show(nanosleep(some, some));
    show(clock_gettime(CLOCK_MONOTONIC_RAW, some));
    show(syscall(SYS_clock_gettime, CLOCK_REALTIME, some));
    show(close(epoll) + close(clock) + close(signal_file) + close(ends[0]) + close(ends[1]));
}

static void sockets(void) {
    struct sockaddr_in *address = far(struct sockaddr_in);
    socklen_t *len = far(socklen_t);
    int server = must(socket(AF_INET, SOCK_STREAM, 0)), client = must(socket(AF_INET, SOCK_STREAM, 0));
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    show(bind(server, (void *)address, sizeof *address));
    *len = sizeof *address;
    show(getsockname(server, (void *)address, len));
    show(listen(server, 5));
    show(connect(client, (void *)address, sizeof *address));
    *len = sizeof *address;
    int peer = (gone(), must(accept(server, (void *)address, len)));
    int *option = far(int);
    *option = 1;
    show(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, option, 4));
    *len = 4;
    show(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, option, len));
    struct msghdr *header = far(struct msghdr);
    struct iovec *parts = slot(4 * sizeof *parts);
    char *text = slot(64);
    strcpy(text, "hello, far away");
    for (int i = 0; i < 4; i++) parts[i] = (struct iovec){text + 4 * i, 4};
    *header = (struct msghdr){.msg_iov = parts, .msg_iovlen = 4};
    show(sendmsg(client, header, 0));
    memset(text, 0, 16);
    show(recvmsg(peer, header, 0));
    printf("%s\n", text);
    // A descriptor is passed.
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    struct cmsghdr *control = slot(CMSG_SPACE(4));
    *header = (struct msghdr){.msg_iov = parts, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(4)};
    *control = (struct cmsghdr){CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS};
    *(int *)CMSG_DATA(control) = 0;
    show(sendmsg(pair[0], header, 0));
    memset(control, 0, CMSG_SPACE(4));
    show(recvmsg(pair[1], header, 0));
    printf("%s\n", *(int *)CMSG_DATA(control) > 2 ? "a descriptor" : "none");
    struct mmsghdr *several = slot(2 * sizeof *several);
    for (int i = 0; i < 2; i++) several[i].msg_hdr = (struct msghdr){.msg_iov = parts + i, .msg_iovlen = 1};
    show(sendmmsg(pair[0], several, 2, 0));
    show(recvmmsg(pair[1], several, 2, MSG_DONTWAIT, 0));
    printf("%d %d\n", several[0].msg_len, several[1].msg_len);
    close(server), close(client), close(peer), close(pair[0]), close(pair[1]);
}

static void messages(void) {
    struct {
        long type;
        char text[100];
    } *message = slot(sizeof *message);
    int queue = must(msgget(IPC_PRIVATE, IPC_CREAT | 0600)), set = must(semget(IPC_PRIVATE, 2, IPC_CREAT | 0600));
    message->type = 3, strcpy(message->text, "queued");
    show(msgsnd(queue, message, 100, 0));
    memset(message, 0, sizeof *message);
    show(msgrcv(queue, message, 100, 0, 0));
    printf("%ld %s\n", message->type, message->text);
    show(msgctl(queue, IPC_STAT, slot(sizeof(struct msqid_ds))));
    must(msgctl(queue, IPC_RMID, 0));
    struct sembuf *operations = slot(2 * sizeof *operations);
    operations[0] = (struct sembuf){0, 2, 0}, operations[1] = (struct sembuf){1, 1, 0};
    show(semop(set, operations, 2));
    unsigned short *values = slot(4);
    show(semctl(set, 0, GETALL, values));
    printf("%d %d\n", values[0], values[1]);
    must(semctl(set, 0, IPC_RMID, 0));
}

static void others(void) {
    show(uname(far(struct utsname)));
    show(sysinfo(far(struct sysinfo)));
    show(getrusage(RUSAGE_SELF, far(struct rusage)));
    show(times(far(struct tms)));
    struct rlimit *limit = far(struct rlimit);
    show(getrlimit(RLIMIT_CORE, limit));
    show(setrlimit(RLIMIT_CORE, limit));
    show(getrlimit(RLIMIT_AS, limit));
    show(syscall(SYS_prlimit64, 0, RLIMIT_DATA, limit, limit));
    cpu_set_t *processors = far(cpu_set_t);
    show(sched_getaffinity(0, sizeof *processors, processors));
    show(sched_setaffinity(0, sizeof *processors, processors));
    struct sigaction *action = far(struct sigaction);
    *action = (struct sigaction){.sa_handler = SIG_IGN};
    show(sigaction(SIGUSR2, action, 0));
    show(getrandom(slot(256), 256, 0));
    char *name = slot(16);
    strcpy(name, "far name");
    show(prctl(PR_SET_NAME, name, 0, 0, 0));
    show(prctl(PR_GET_NAME, slot(16), 0, 0, 0));
    unsigned *word = far(unsigned);
    struct timespec *timeout = far(struct timespec);
    *timeout = (struct timespec){0, 1000};
    show(syscall(SYS_futex, word, FUTEX_WAIT, 0, timeout, 0, 0));
    show(syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 1, 0, 0, -1));
    show(syscall(SYS_futex, word, FUTEX_WAKE_OP, 1, 1, word, FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0)));
    printf("word %u\n", *word);
    *word = 0;
    show(syscall(SYS_futex, word, FUTEX_LOCK_PI, 0, 0, 0, 0));
    show(syscall(SYS_futex, word, FUTEX_UNLOCK_PI, 0, 0, 0, 0));
    int *status = far(int);
    pid_t pid = must(fork());
    if (!pid) _exit(7);
    gone();
    printf("waited %d ", waitpid(pid, status, 0) == pid);
    printf("%d\n", WEXITSTATUS(*status));
    if (!(pid = must(fork()))) _exit(8);
    siginfo_t *info = far(siginfo_t);
    show(waitid(P_PID, pid, info, WEXITED));
    printf("%d\n", info->si_status);
}

int main(void) {
    size_t bytes = 64 * MIB;
    char *data = pages(bytes);
    fill(data, bytes, 1);
    area = pages(4 * MIB);
    memset(area, 0, 4 * MIB);
    thrash();
    void (*all[])(void) = {files, waits, sockets, messages, others};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) next = 0, all[i]();
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
