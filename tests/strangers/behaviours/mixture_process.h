// The kinds of `mixture` with other processes, descriptors, signals and locales.
#include <grp.h>
#include <locale.h>
#include <spawn.h>
#include <wchar.h>

// Forks whose children set a locale, and the library's lock of locales, which a fork does not free.
static pthread_mutex_t locales = PTHREAD_MUTEX_INITIALIZER;

// What a child does with its copy; it may fork again.
static int child_work(int generations) {
    struct range x = some(&me->own, 64);
    verify(&me->own, some(&me->own, 128));
    verify(&readonly, some(&readonly, 64));
    rewrite(&me->own, x);
    do_heap();
    if (chance(4) == 0) do_discard();
    x = some(&me->own, 64);
    rewrite(&me->own, x);
    if (generations > 0) {
        pid_t pid = need(fork());
        if (pid == 0) {
            me->depth++;
            next_random();
            _exit(child_work(generations - 1) + 1);
        }
        rewrite(&me->other, some(&me->other, 64));
        want(ended(pid), 5);
    }
    verify(&me->own, x);
    return 4;
}

static pid_t forked(void) {
    pid_t pid = need(fork());
    u64 other = next_random();
    if (pid == 0) {
        me->depth++;
        me->state = other;
    }
    return pid;
}

static void do_storm(void) {
    pid_t children[12];
    int count = 2 + chance(11);
    for (int i = 0; i < count; i++)
        if ((children[i] = forked()) == 0) _exit(child_work(chance(4) == 0) + 10 + i);
    rewrite(&me->own, some(&me->own, 128));
    verify(&me->own, some(&me->own, 256));
    for (int i = 0; i < count; i++) want(ended(children[i]), 14 + i);
}

static void do_fork(void) {
    pid_t pid = forked();
    if (pid == 0) _exit(child_work(chance(3)));
    do_write();
    want(ended(pid), 4);
}

static void do_rights(void) {
    pid_t pid = forked();
    if (pid == 0) {
        need(setgroups(0, 0));
        need(setresgid(65534, 65534, 65534));
        need(setresuid(65534, 65534, 65534));
        child_work(1);
        _exit(child_work(0));
    }
    do_write();
    want(ended(pid), 4);
}

static void do_spawn(void) {
    pid_t pid;
    if (chance(2)) {
        static char *arguments[] = {"true", 0};
        want(posix_spawn(&pid, "/bin/true", 0, 0, arguments, environ), 0);
    } else if ((pid = need(vfork())) == 0) {
        execl("/bin/true", "true", (char *)0);
        _exit(127);
    }
    do_write();
    want(ended(pid), 0);
}

static void do_stops(void) {
    pid_t parent = getpid(), pid = forked();
    if (pid == 0) {
        for (int i = 0; i < 4; i++) {
            kill(parent, SIGSTOP);
            usleep(500 + chance(1500));
            kill(parent, SIGCONT);
            usleep(500 + chance(1500));
        }
        _exit(4);
    }
    do_write();
    do_read();
    want(ended(pid), 4);
}

// The names of things, as this locale writes them.
static void speak(int utf8) {
    char text[64];
    int length = snprintf(text, sizeof text, "%ls %.2f", L"\u5e83\u9593", 1234.5);
    if (utf8) want(strcmp(text, "\xe5\xba\x83\xe9\x96\x93 1234.50"), 0);
    else want(length < 64, 1);
}

static int utf8_here(void) {
    setlocale(LC_ALL, "");
    return setlocale(LC_ALL, "C.UTF-8") != 0;
}

static void do_locale(void) {
    pthread_mutex_lock(&locales);
    locale_t mine = newlocale(LC_ALL_MASK, "C.UTF-8", 0);
    if (mine) {
        locale_t before = uselocale(mine);
        speak(1);
        uselocale(before);
        freelocale(mine);
    }
    pid_t pid = forked();
    pthread_mutex_unlock(&locales);
    if (pid == 0) {
        speak(utf8_here());
        child_work(1);
        _exit(4);
    }
    want(ended(pid), 4);
}

static void all_closed(int below) {
    if (chance(2)) want(call(SYS_close_range, 3, ~0u, 0, 0, 0, 0), 0);
    else for (int i = 3; i < below; i++) close(i);
    for (int i = 3; i < below; i++) {
        want(fcntl(i, F_GETFD), -1);
        want(errno, EBADF);
    }
}

// One file under all low numbers: each of them is this file, and no other is there.
static void low_numbers(void) {
    int file = scratch(0);
    want(file, 3);
    file_at(file, me->own.at, PAGE, 1);
    for (int i = 4; i < 40; i++) want(dup2(file, i), i);
    for (int i = 3; i < 40; i++) {
        size_t to = chance(me->other.pages);
        want(call(SYS_pread64, i, place(&me->other, to), PAGE, 0, 0, 0), PAGE);
        me->other.salts[to] = me->own.salts[0];
        verify(&me->other, (struct range){to, 1});
    }
    all_closed(40);
}

static void many_files(void) {
    for (int i = 3; i < 200; i++) want(open("/dev/null", O_RDWR), i);
    all_closed(200);
}

static void *with_own_table(void *of) {
    me = of;
    need(unshare(CLONE_FILES));
    want(call(SYS_close_range, 3, ~0u, 0, 0, 0, 0), 0);
    low_numbers();
    do_write();
    return 0;
}

// A child that has no number left forks.
static void full_table(void) {
    pid_t pid = forked();
    if (pid == 0) {
        struct rlimit few = {64, 64};
        need(setrlimit(RLIMIT_NOFILE, &few));
        for (int i = 3; i < 64; i++) want(open("/dev/null", O_RDWR), i);
        want(open("/dev/null", O_RDWR), -1);
        child_work(1);
        all_closed(64);
        _exit(child_work(0));
    }
    want(ended(pid), 4);
}

static void do_descriptors(void) {
    int kind = chance(4);
    if (kind == 0) low_numbers();
    if (kind == 1) many_files();
    if (kind == 2) full_table();
    if (kind == 3) {
        pthread_t thread;
        want(open("/dev/null", O_RDWR), 3);
        want(pthread_create(&thread, 0, with_own_table, me), 0);
        want(pthread_join(thread, 0), 0);
        need(fcntl(3, F_GETFD));
        all_closed(40);
    }
}
