// The kernel's own cryptography (AF_ALG) hashes far memory, by send and by vmsplice.
#include "behaviour.h"
#include <linux/if_alg.h>

static void hash(int how, char *data, size_t bytes, unsigned char *digest) {
    struct sockaddr_alg address = {.salg_family = AF_ALG, .salg_type = "hash", .salg_name = "sha256"};
    int maker = socket(AF_ALG, SOCK_SEQPACKET, 0);
    if (maker < 0 || bind(maker, (struct sockaddr *)&address, sizeof address)) skip("AF_ALG: %s", strerror(errno));
    int hasher = must(accept(maker, 0, 0)), pipes[2];
    must(pipe(pipes));
    for (size_t at = 0, sent; at < bytes; at += sent) {
        size_t piece = bytes - at < 64 * 1024 ? bytes - at : 64 * 1024;
        if (how == 0) sent = must(send(hasher, data + at, piece, MSG_MORE));
        else {
            struct iovec vector = {data + at, piece};
            sent = must(vmsplice(pipes[1], &vector, 1, 0));
            for (size_t gone = 0; gone < sent;) gone += must(splice(pipes[0], 0, hasher, 0, sent - gone, SPLICE_F_MORE));
        }
    }
    must(send(hasher, 0, 0, 0));
    must(read(hasher, digest, 32));
    close(pipes[0]), close(pipes[1]), close(hasher), close(maker);
}

int main(void) {
    size_t bytes = 32 * MIB;
    char *data = pages(bytes);
    for (int how = 0; how < 2; how++) {
        fill(data, bytes, 1);
        thrash_by(64 * MIB);
        unsigned char digest[32];
        hash(how, data, bytes, digest);
        for (int i = 0; i < 32; i++) printf("%02x", digest[i]);
        printf("\n");
        check("memory", wrong(data, bytes, 1));
    }
    return verdict();
}
