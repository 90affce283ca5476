import hashlib, multiprocessing
import numpy as np
from multiprocessing import shared_memory
data = np.random.default_rng(1).integers(0, 1 << 60, 20_000_000)
def part(k):
    mine = np.sort(data[k::8])
    return int(mine[::1000].sum())
def into(name, k):
    block = shared_memory.SharedMemory(name)
    view = np.ndarray((8, 100_000), dtype=np.int64, buffer=block.buf)
    view[k] = data[k * 100_000:(k + 1) * 100_000]
    del view
    block.close()
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        print(pool.map(part, range(8), chunksize=1))
    block = shared_memory.SharedMemory(create=True, size=6_400_000)
    workers = [context.Process(target=into, args=(block.name, k)) for k in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    print([w.exitcode for w in workers], hashlib.sha256(bytes(block.buf[:6_400_000])).hexdigest())
    block.close()
    block.unlink()
    print(hashlib.sha256(data.tobytes()).hexdigest())
