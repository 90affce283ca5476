// io_uring whose rings and provided buffers lie in the program's own memory, with a kernel thread that polls. usage: ringmemory [poll]
#include "behaviour.h"
#include <linux/io_uring.h>
#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1u << 14)
#endif

int main(int count, char **given) {
    int polls = count > 1;
    size_t bytes = 32 * MIB, piece = 256 * 1024, entries = 32;
    char *rings = pages(2 * MIB), *entry_room = pages(2 * MIB);
    // Behind them lies other memory in the same huge page.
    fill(rings + MIB, MIB, 8);
    thrash_by(64 * MIB);
    memset(rings, 0, 4 * PAGE);
    memset(entry_room, 0, 4 * PAGE);
    struct io_uring_params how = {.flags = IORING_SETUP_NO_MMAP | (polls ? IORING_SETUP_SQPOLL : 0), .sq_thread_idle = 50};
    // Where newer headers have `user_addr`: the last eight bytes of each.
    memcpy((char *)&how.cq_off + sizeof how.cq_off - 8, &rings, 8);
    memcpy((char *)&how.sq_off + sizeof how.sq_off - 8, &entry_room, 8);
    int ring = syscall(SYS_io_uring_setup, entries, &how);
    if (ring < 0) skip("io_uring with rings in the program's memory: %s", strerror(errno));
    unsigned *head = (void *)(rings + how.cq_off.head), *tail = (void *)(rings + how.cq_off.tail), *submitted = (void *)(rings + how.sq_off.tail);
    unsigned *array = (void *)(rings + how.sq_off.array), *flags = (void *)(rings + how.sq_off.flags), mask = how.sq_entries - 1;
    struct io_uring_cqe *done = (void *)(rings + how.cq_off.cqes);
    struct io_uring_sqe *sqes = (void *)entry_room;
    int file = must(open("ringmemory-file", O_RDWR | O_CREAT | O_TRUNC, 0600));
    char *data = pages(bytes), *back = pages(bytes);
    fill(data, bytes, 1);
    memset(back, 7, bytes);
    for (int reading = 0; reading < 2; reading++) {
        size_t bad = 0;
        for (size_t at = 0; at < bytes; at += piece) {
            if (at == 16 * piece) thrash_by(64 * MIB);
            unsigned slot = *submitted & mask;
            sqes[slot] = (struct io_uring_sqe){.opcode = reading ? IORING_OP_READ : IORING_OP_WRITE, .fd = file, .off = at, .len = piece,
                                               .addr = (u64)(reading ? back : data) + at, .user_data = at};
            array[slot] = slot;
            __atomic_store_n(submitted, *submitted + 1, __ATOMIC_SEQ_CST);
            int wake = polls && __atomic_load_n(flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP;
            must(syscall(SYS_io_uring_enter, ring, polls ? 0 : 1, 1, IORING_ENTER_GETEVENTS | (wake ? IORING_ENTER_SQ_WAKEUP : 0), 0, 0));
            unsigned now = *head;
            if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) != now + 1) bad++;
            bad += done[now & (how.cq_entries - 1)].res != (int)piece || done[now & (how.cq_entries - 1)].user_data != at;
            __atomic_store_n(head, now + 1, __ATOMIC_RELEASE);
        }
        check(reading ? "reads" : "writes", bad);
    }
    thrash_by(64 * MIB);
    check("written", wrong(data, bytes, 1));
    check("read", wrong(back, bytes, 1));
    check("beside the rings", wrong(rings + MIB, MIB, 8));
    close(ring);
    unlink("ringmemory-file");
    return verdict();
}
