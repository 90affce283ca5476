"""A forked pool over one large array, which the children read, and change for themselves."""
import array, hashlib, multiprocessing
data = array.array("Q", (i * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for i in range(1 << 20))) * 16
def part(k):
    mine = data[k << 20:(k + 1) << 20]
    for i in range(0, len(data), 4096):
        data[i] ^= k
    result = hashlib.sha256(mine.tobytes()).hexdigest()[:16]
    for i in range(0, len(data), 4096):
        data[i] ^= k
    return result
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(part, range(16), chunksize=1))
    print(hashlib.sha256(data.tobytes()).hexdigest())
