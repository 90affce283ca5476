// POSIX timers that start threads, and signals that are waited for, with everything they are given in far memory.
#include "behaviour.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static char *data;
static size_t bytes = 64 * MIB;
static int fired, bad;

static void on_timer(union sigval value) {
    size_t at = (size_t)__atomic_add_fetch(&fired, 1, __ATOMIC_RELAXED) * 7919 * PAGE % bytes;
    if (*(u64 *)(data + at) != word(at / 8, 1)) bad++;
}

int main(void) {
    data = pages(bytes);
    fill(data, bytes, 1);
    timer_t *timer = (void *)pages(PAGE);
    struct sigevent *event = (void *)pages(PAGE);
    struct itimerspec *every = (void *)pages(PAGE);
    *event = (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer};
    *every = (struct itimerspec){{0, 3000000}, {0, 3000000}};
    thrash_by(64 * MIB);
    must(timer_create(CLOCK_MONOTONIC, event, timer));
    must(timer_settime(*timer, 0, every, 0));
    thrash_by(64 * MIB);
    while (__atomic_load_n(&fired, __ATOMIC_RELAXED) < 50) usleep(1000);
    must(timer_delete(*timer));
    usleep(50000);
    check("timer", bad);
    // Each of these gets a page of its own that has been far.
    sigset_t *set = (void *)pages(PAGE);
    struct signalfd_siginfo *info = (void *)pages(PAGE);
    struct epoll_event *events = (void *)pages(PAGE);
    struct pollfd *polled = (void *)pages(PAGE);
    u64 *count = (void *)pages(PAGE);
    struct timespec *pause = (void *)pages(PAGE);
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    must(sigprocmask(SIG_BLOCK, set, 0));
    int signals = must(signalfd(-1, set, 0)), ticks = must(timerfd_create(CLOCK_MONOTONIC, 0)), all = must(epoll_create1(0));
    events[0] = (struct epoll_event){EPOLLIN, {.u64 = 1}}, events[1] = (struct epoll_event){EPOLLIN, {.u64 = 2}};
    polled[0] = (struct pollfd){ticks, POLLIN}, polled[1] = (struct pollfd){signals, POLLIN};
    *every = (struct itimerspec){{0, 0}, {0, 1000}};
    *pause = (struct timespec){0, 1000000};
    thrash_by(64 * MIB);
    must(epoll_ctl(all, EPOLL_CTL_ADD, signals, &events[0]));
    must(epoll_ctl(all, EPOLL_CTL_ADD, ticks, &events[1]));
    must(timerfd_settime(ticks, 0, every, 0));
    kill(getpid(), SIGUSR1);
    clock_nanosleep(CLOCK_MONOTONIC, 0, pause, 0);
    thrash_by(64 * MIB);
    long ready = must(poll(polled, 2, 1000));
    printf("polled %ld, %d %d\n", ready, polled[0].revents, polled[1].revents);
    thrash_by(64 * MIB);
    printf("events %ld\n", must(epoll_wait(all, events, 8, 1000)));
    ready = must(read(signals, info, sizeof *info));
    printf("signal %ld %u\n", ready, info->ssi_signo);
    printf("ticks %ld\n", must(read(ticks, count, 8)));
    check("memory", wrong(data, bytes, 1));
    return verdict();
}
