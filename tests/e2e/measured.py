"""measured.py FILE PROGRAM [ARGUMENT...]: runs the program, writes the most bytes that it (or one of its children) had resident to FILE,
and ends as it did.

Linux counts what a process was before its exec to what it is afterwards. A program that is started by a large one seems as large
therefore; by this one, which is small, it does not.
"""

import os
import signal
import sys


def main():
    file, command = sys.argv[1], sys.argv[2:]
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    _, status, usage = os.wait4(pid, 0)
    with open(file, "w") as out:
        out.write(str(usage.ru_maxrss * 1024))
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


sys.exit(main())
