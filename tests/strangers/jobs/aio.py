import asyncio, hashlib
async def serve(reader, writer):
    while line := await reader.readexactly(1 << 16):
        writer.write(hashlib.sha256(line).digest())
        await writer.drain()
        if line[0] == 255:
            writer.close()
            return
async def client(path, k):
    reader, writer = await asyncio.open_unix_connection(path)
    total = b""
    for i in range(40):
        writer.write(bytes([255 if i == 39 else k]) * (1 << 16))
        total = hashlib.sha256(total + await reader.readexactly(32)).digest()
    writer.close()
    return total.hex()[:16]
async def main():
    ballast = [bytes([i & 255]) * 4096 for i in range(30_000)]
    server = await asyncio.start_unix_server(serve, "socket")
    print(await asyncio.gather(*(client("socket", k) for k in range(30))))
    server.close()
    print(hashlib.sha256(b"".join(ballast)).hexdigest())
asyncio.run(main())
