# A UTF-8 locale, 200 MiB, and a fork whose child reads all of it.
import os
b=bytearray(os.urandom(1<<20))*200
import hashlib; h=hashlib.md5(b).digest()
p=os.fork()
if p==0:
    os._exit(0 if hashlib.md5(b).digest()==h else 7)
_,st=os.waitpid(p,0)
b[5]^=1; b[5]^=1
assert st==0 and hashlib.md5(b).digest()==h
