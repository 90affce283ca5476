// The kinds of `mixture` in which the kernel reads and writes far memory: each copies pages by a way through the kernel.
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

// A file that is gone when it is closed.
static int scratch(int flags) {
    char name[64];
    snprintf(name, sizeof name, "mixture-%d-%d", getpid(), me->number);
    int file = need(open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600));
    need(unlink(name));
    return file;
}

static void file_at(int file, char *at, size_t bytes, int writes) {
    for (size_t done = 0; done < bytes;) {
        long part = call(writes ? SYS_pwrite64 : SYS_pread64, file, at + done, bytes - done, done, 0, 0);
        if (part <= 0) failed(writes ? "pwrite" : "pread", part, bytes - done, __LINE__);
        done += part;
    }
}

static void receive(int from, char *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        long part = call(SYS_read, from, to + done, bytes - done, 0, 0, 0);
        if (part <= 0) failed("read", part, bytes - done, __LINE__);
        done += part;
    }
}

static void by_file(char *from, char *to, size_t bytes) {
    int file = scratch(0);
    file_at(file, from, bytes, 1);
    file_at(file, to, bytes, 0);
    close(file);
}

static void by_direct(char *from, char *to, size_t bytes) {
    int file = scratch(O_DIRECT);
    file_at(file, from, bytes, 1);
    file_at(file, to, bytes, 0);
    close(file);
}

static void by_vectors(char *from, char *to, size_t bytes) {
    int file = scratch(0);
    size_t first = chance(bytes), second = chance(bytes - first);
    struct iovec out[] = {{from, first}, {from + first, second}, {from + first + second, bytes - first - second}};
    struct iovec in[] = {{to, second}, {to + second, first}, {to + first + second, bytes - first - second}};
    want(call(SYS_pwritev, file, out, 3, 0, 0, 0), bytes);
    want(lseek(file, 0, SEEK_SET), 0);
    want(call(SYS_readv, file, in, 3, 0, 0, 0), bytes);
    close(file);
}

static void by_process(char *from, char *to, size_t bytes) {
    struct iovec here = {to, bytes}, there = {from, bytes};
    if (chance(2)) want(call(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0), bytes);
    else want(call(SYS_process_vm_writev, getpid(), &there, 1, &here, 1, 0), bytes);
}

static void by_socket(char *from, char *to, size_t bytes) {
    int ends[2];
    need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    for (size_t done = 0; done < bytes; done += 8 * PAGE) {
        size_t part = bytes - done < 8 * PAGE ? bytes - done : 8 * PAGE;
        want(call(SYS_write, ends[0], from + done, part, 0, 0, 0), part);
        receive(ends[1], to + done, part);
    }
    close(ends[0]);
    close(ends[1]);
}

struct pipe {
    int out, in;
    size_t room;
};

static struct pipe a_pipe(void) {
    int ends[2];
    need(pipe2(ends, O_CLOEXEC));
    // Whoever is not root may be refused.
    fcntl(ends[1], F_SETPIPE_SZ, 512 << 10);
    return (struct pipe){ends[0], ends[1], need(fcntl(ends[1], F_GETPIPE_SZ))};
}

static void no_pipe(struct pipe p) {
    close(p.out);
    close(p.in);
}

static void by_pipe(char *from, char *to, size_t bytes) {
    struct pipe p = a_pipe();
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < p.room ? bytes - done : p.room;
        want(call(SYS_write, p.in, from + done, part, 0, 0, 0), part);
        receive(p.out, to + done, part);
        done += part;
    }
    no_pipe(p);
}

// Through the page cache: a file, a pipe, another file.
static void by_splice(char *from, char *to, size_t bytes) {
    struct pipe p = a_pipe();
    int one = scratch(0), two = scratch(0);
    file_at(one, from, bytes, 1);
    loff_t in = 0, out = 0;
    while (out < (loff_t)bytes) {
        long part = need(splice(one, &in, p.in, 0, bytes - in < p.room ? bytes - in : p.room, SPLICE_F_MOVE));
        for (loff_t end = out + part; out < end;) need(splice(p.out, 0, two, &out, end - out, SPLICE_F_MOVE));
    }
    file_at(two, to, bytes, 0);
    close(one);
    close(two);
    no_pipe(p);
}

// The pipe has the pages themselves; they are read when there was pressure, half of the times from a copy of the pipe.
static void lent(char *from, char *to, size_t bytes, int flags) {
    struct pipe p = a_pipe(), copy = a_pipe();
    int copied = chance(2) && copy.room >= p.room;
    for (size_t done = 0; done < bytes;) {
        struct iovec piece = {from + done, bytes - done};
        size_t part = chance(2) ? need(vmsplice(p.in, &piece, 1, flags | SPLICE_F_NONBLOCK))
                                : need(syscall(SYS_vmsplice, p.in, &piece, 1, flags | SPLICE_F_NONBLOCK));
        if (copied) want(tee(p.out, copy.in, part, 0), part);
        idle();
        receive(p.out, to + done, part);
        if (copied) {
            verify(&me->own, some(&me->own, 64));
            receive(copy.out, to + done, part);
        }
        done += part;
    }
    no_pipe(p);
    no_pipe(copy);
}

static void by_vmsplice(char *from, char *to, size_t bytes) { lent(from, to, bytes, 0); }
static void by_gift(char *from, char *to, size_t bytes) { lent(from, to, bytes, SPLICE_F_GIFT); }

static void connected(int *from, int *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct linger at_once = {1, 0};
    int listener = need(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), one = 1;
    need(bind(listener, (struct sockaddr *)&address, length));
    need(listen(listener, 1));
    need(getsockname(listener, (struct sockaddr *)&address, &length));
    *from = need(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    need(connect(*from, (struct sockaddr *)&address, length));
    *to = need(accept4(listener, 0, 0, SOCK_CLOEXEC));
    need(setsockopt(*from, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    // No connection stays in TIME_WAIT.
    need(setsockopt(*from, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    close(listener);
}

// How many sends the kernel says to have done with.
static unsigned notified(int socket) {
    unsigned count = 0;
    for (;;) {
        char control[256];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return count;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            struct sock_extended_err *error = (void *)CMSG_DATA(c);
            if (error->ee_origin == SO_EE_ORIGIN_ZEROCOPY) count += error->ee_data - error->ee_info + 1;
        }
    }
}

// What the other side has no room for yet stays in this memory.
static void by_zerocopy(char *from, char *to, size_t bytes) {
    int out, in;
    size_t sent = 0, got = 0;
    unsigned calls = 0, done = 0;
    connected(&out, &in);
    while (got < bytes) {
        while (sent < bytes) {
            long part = send(out, from + sent, bytes - sent, MSG_ZEROCOPY | MSG_DONTWAIT);
            if (part < 0 && errno != EAGAIN && errno != ENOBUFS) failed("send", part, bytes - sent, __LINE__);
            if (part < 0) break;
            sent += part;
            calls++;
        }
        idle();
        size_t part = sent - got < 16 * PAGE ? sent - got : 16 * PAGE;
        receive(in, to + got, part);
        got += part;
        done += notified(out);
    }
    for (struct pollfd wait = {out, 0, 0}; done < calls; done += notified(out)) poll(&wait, 1, 100);
    want(done, calls);
    close(out);
    close(in);
}

static void through_ring(char *from, char *to, size_t bytes, int registered) {
    struct io_uring_params p = {0};
    int file = scratch(chance(2) ? O_DIRECT : 0), ring = need(syscall(SYS_io_uring_setup, 2, &p));
    size_t room = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), entries = p.sq_entries * sizeof(struct io_uring_sqe);
    if (room < p.sq_off.array + p.sq_entries * 4) room = p.sq_off.array + p.sq_entries * 4;
    char *rings = (char *)need(mmap(0, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING));
    struct io_uring_sqe *entry = (void *)need(mmap(0, entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES));
    unsigned *tail = (void *)(rings + p.sq_off.tail), *head = (void *)(rings + p.cq_off.head), *done = (void *)(rings + p.cq_off.tail);
    unsigned *array = (void *)(rings + p.sq_off.array), sq_mask = *(unsigned *)(rings + p.sq_off.ring_mask);
    struct io_uring_cqe *results = (void *)(rings + p.cq_off.cqes);
    // Pinned from now on.
    struct iovec pinned[] = {{from, bytes}, {to, bytes}};
    if (registered) {
        want(call(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, pinned, 2, 0, 0), 0);
        idle();
    }
    for (int reads = 0; reads < 2; reads++) {
        unsigned slot = *tail & sq_mask;
        int how = registered ? (reads ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED) : reads ? IORING_OP_READ : IORING_OP_WRITE;
        entry[slot] = (struct io_uring_sqe){.opcode = how, .flags = chance(2) ? IOSQE_ASYNC : 0, .fd = file, .addr = (u64)(reads ? to : from), .len = bytes,
                                            .buf_index = reads};
        array[slot] = slot;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        want(call(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0), 1);
        idle();
        while (__atomic_load_n(done, __ATOMIC_ACQUIRE) == *head) call(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
        int result = results[*head & *(unsigned *)(rings + p.cq_off.ring_mask)].res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        // The kernel cancels what has no worker yet, when signals keep it from making one: once more.
        if (result == -ECANCELED) {
            reads--;
            continue;
        }
        want(result, bytes);
    }
    need(munmap(rings, room));
    need(munmap(entry, entries));
    close(ring);
    close(file);
}

static void by_uring(char *from, char *to, size_t bytes) { through_ring(from, to, bytes, 0); }

static void by_registered(char *from, char *to, size_t bytes) { through_ring(from, to, bytes, 1); }

// Copies pages of one region to another through the kernel.
static void copied(void (*way)(char *, char *, size_t), size_t most) {
    struct range from = some(&me->own, most);
    size_t to = chance(me->other.pages - from.count + 1);
    way(place(&me->own, from.first), place(&me->other, to), from.count * PAGE);
    memcpy(&me->other.salts[to], &me->own.salts[from.first], from.count * sizeof(u64));
    verify(&me->other, (struct range){to, from.count});
    verify(&me->own, from);
}

static void do_file(void) { copied(by_file, 128); }
static void do_direct(void) { copied(by_direct, 128); }
static void do_vectors(void) { copied(by_vectors, 128); }
static void do_process(void) { copied(by_process, 128); }
static void do_socket(void) { copied(by_socket, 128); }
static void do_pipe(void) { copied(by_pipe, 128); }
static void do_splice(void) { copied(by_splice, 128); }
static void do_vmsplice(void) { copied(by_vmsplice, 192); }
static void do_gift(void) { copied(by_gift, 192); }
static void do_zerocopy(void) { copied(by_zerocopy, 192); }
static void do_uring(void) { copied(by_uring, 128); }
static void do_registered(void) { copied(by_registered, 128); }

// What the kernel has put there stays.
static void do_random(void) {
    static char before[WORKERS + 1][8 * PAGE];
    struct range x = some(&me->other, 8);
    char *at = place(&me->other, x.first);
    size_t bytes = x.count * PAGE;
    for (size_t done = 0; done < bytes;) done += need(call(SYS_getrandom, at + done, bytes - done, 0, 0, 0, 0));
    memcpy(before[me->number], at, bytes);
    idle();
    want(memcmp(before[me->number], at, bytes), 0);
    rewrite(&me->other, x);
}

// A file is mapped past the C library, and changed in its mapping.
static void do_filemap(void) {
    struct region *r = &me->fresh;
    struct range from = some(&me->own, 128);
    int file = scratch(0), shares = chance(2);
    r->pages = from.count;
    file_at(file, place(&me->own, from.first), from.count * PAGE, 1);
    r->at = (char *)need(raw(SYS_mmap, 0, r->pages * PAGE, PROT_READ | PROT_WRITE, shares ? MAP_SHARED : MAP_PRIVATE, file, 0));
    memcpy(r->salts, &me->own.salts[from.first], r->pages * sizeof(u64));
    verify(r, all(r));
    rewrite(r, some(r, 64));
    idle();
    verify(r, all(r));
    file_at(file, me->other.at, r->pages * PAGE, 0);
    memcpy(me->other.salts, shares ? r->salts : &me->own.salts[from.first], r->pages * sizeof(u64));
    verify(&me->other, (struct range){0, r->pages});
    want(raw(SYS_munmap, (long)r->at, r->pages * PAGE, 0, 0, 0, 0), 0);
    close(file);
}
