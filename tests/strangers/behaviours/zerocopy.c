// Pages that are lent to a socket keep their content until they are sent: MSG_ZEROCOPY, by a program that another has set the socket up for, and io_uring's SEND_ZC. usage: zerocopy send|ring
#include "behaviour.h"
#include <linux/io_uring.h>
#include <netinet/in.h>

static size_t bytes = 8 * MIB;

// Two ends of a connection: little fits in where it is read, so that what is sent waits for long.
static void connection(int ends[2]) {
    struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t room = sizeof address;
    int listening = must(socket(AF_INET, SOCK_STREAM, 0)), little = 64 * 1024, much = 64 * MIB;
    must(bind(listening, (void *)&address, room));
    must(listen(listening, 1));
    must(getsockname(listening, (void *)&address, &room));
    ends[0] = must(socket(AF_INET, SOCK_STREAM, 0));
    must(setsockopt(ends[0], SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    must(connect(ends[0], (void *)&address, room));
    ends[1] = must(accept(listening, 0, 0));
    if (setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof much)) skip("a socket's buffer: %s", strerror(errno));
    close(listening);
}

static size_t by_send(int to, char *data) {
    size_t sent = 0;
    while (sent < bytes) {
        ssize_t now = send(to, data + sent, bytes - sent, MSG_ZEROCOPY | MSG_DONTWAIT);
        if (now <= 0) break;
        sent += now;
    }
    return sent;
}

static size_t by_ring(int to, char *data) {
    struct io_uring_params how = {};
    int ring = syscall(SYS_io_uring_setup, 8, &how);
    if (ring < 0) skip("io_uring: %s", strerror(errno));
    int both = PROT_READ | PROT_WRITE;
    char *submissions = (char *)must(mmap(0, MIB, both, MAP_SHARED, ring, IORING_OFF_SQ_RING));
    char *completions = (char *)must(mmap(0, MIB, both, MAP_SHARED, ring, IORING_OFF_CQ_RING));
    struct io_uring_sqe *entries = (void *)must(mmap(0, how.sq_entries * sizeof *entries, both, MAP_SHARED, ring, IORING_OFF_SQES));
    unsigned *submitted = (void *)(submissions + how.sq_off.tail), *array = (void *)(submissions + how.sq_off.array);
    unsigned *head = (void *)(completions + how.cq_off.head), *tail = (void *)(completions + how.cq_off.tail);
    struct io_uring_cqe *done = (void *)(completions + how.cq_off.cqes);
    size_t sent = 0;
    for (int result = 1; sent < bytes && result > 0;) {
        unsigned slot = *submitted & (how.sq_entries - 1);
        entries[slot] = (struct io_uring_sqe){.opcode = IORING_OP_SEND_ZC, .fd = to, .addr = (u64)data + sent, .len = bytes - sent,
                                              .msg_flags = MSG_DONTWAIT};
        array[slot] = slot;
        __atomic_store_n(submitted, *submitted + 1, __ATOMIC_RELEASE);
        must(syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0));
        // Beside the result of each, there is a notice when its pages are given back.
        for (int answered = 0; !answered;) {
            if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) == *head) must(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0));
            struct io_uring_cqe *one = &done[*head & (how.cq_entries - 1)];
            answered = !(one->flags & IORING_CQE_F_NOTIF);
            if (answered) result = one->res;
            __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        }
        if (result == -EINVAL) skip("io_uring: no SEND_ZC");
        if (result > 0) sent += result;
    }
    return sent;
}

int main(int count, char **given) {
    int ring = !strcmp(given[1], "ring"), ends[2];
    if (count > 2) {
        ends[0] = atoi(given[2]);
        ends[1] = atoi(given[3]);
    } else {
        connection(ends);
        if (!ring) {
            // What is executed has the socket, and does not say itself that it will lend pages.
            char numbers[2][16];
            for (int i = 0; i < 2; i++) sprintf(numbers[i], "%d", ends[i]);
            must(setsockopt(ends[1], SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
            must(execl("/proc/self/exe", given[0], given[1], numbers[0], numbers[1], (char *)0));
        }
    }
    size_t more = 64 * MIB;
    char *data = pages(bytes), *other = pages(more), *got = pages(bytes);
    fill(data, bytes, 1);
    fill(other, more, 2);
    size_t sent = ring ? by_ring(ends[1], data) : by_send(ends[1], data);
    printf("sent %s\n", sent == bytes ? "all" : "a part");
    fflush(stdout);
    // They do not become far meanwhile, whatever asks for it.
    for (int i = 0; i < 3; i++) {
        madvise(data, bytes, MADV_PAGEOUT);
        thrash_by(32 * MIB);
        check("other memory", wrong(other, more, 2));
    }
    size_t received = 0;
    while (received < sent) {
        ssize_t now = read(ends[0], got + received, sent - received);
        if (now <= 0) break;
        received += now;
    }
    printf("received %s\n", received == sent ? "all" : "a part");
    check("received", wrong(got, received, 1));
    check("sent", wrong(data, bytes, 1));
    return verdict();
}
