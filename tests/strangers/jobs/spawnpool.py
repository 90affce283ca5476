import concurrent.futures, hashlib, multiprocessing
def part(k):
    return hashlib.sha256(bytes([k]) * (40 << 20)).hexdigest()[:12], sum(range(k * 100_000))
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(part, range(8))))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(list(pool.map(part, range(8))))
    big = [bytes([i & 255]) * 1000 for i in range(150_000)]
    print(hashlib.sha256(b"".join(big)).hexdigest())
