"""measured.py FILE PROGRAM [ARGUMENT...]: runs the program, writes the most bytes that it (or one of its children) had resident to FILE,
and ends as it did. Signals go on to the program.

Linux counts what a process was before its exec to what it is afterwards. A program that is started by a large one seems as large
therefore; by this one, which is small, it does not.
"""

import os
import signal
import sys

FORWARDED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def main():
    file, command = sys.argv[1], sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            # Python ignores SIGPIPE, and what it starts would too.
            for number in [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT]:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _, status, usage = os.wait4(pid, 0)
    with open(file, "w") as out:
        out.write(str(usage.ru_maxrss * 1024))
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


sys.exit(main())
