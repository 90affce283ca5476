/*
 * forks [MIB] [CHILDREN]: fills memory, forks; child and parent each see what was there at the fork, change it at the same
 * time, and never see the changes of the other.
 */
#include "content.h"
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    size_t mib = argument(argc, argv, 1, 96), children = argument(argc, argv, 2, 3);
    uint64_t pages = mib * MIB / PAGE;
    uint64_t *mem = map_words(pages * PAGE);
    fill(mem, 0, pages, 1);
    for (uint64_t child = 0; child < children; child++) {
        uint64_t before = child + 1;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            verify(mem, 0, pages, before, "child after the fork");
            fill(mem, 0, pages, 100 + child);
            verify(mem, 0, pages, 100 + child, "child after its own changes");
            _exit(0);
        }
        fill(mem, 0, pages / 2, before + 1);
        verify(mem, pages / 2, pages, before, "parent, the half that it left alone");
        verify(mem, 0, pages / 2, before + 1, "parent, the half that it changed");
        fill(mem, pages / 2, pages, before + 1);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            die("child %lu ended with status %#x", (unsigned long)child, status);
        verify(mem, 0, pages, before + 1, "parent after the child");
    }
    printf("forks: %zu children right\n", children);
    return 0;
}
