"""SQLite in memory: a table, an index, changes, and queries whose results are printed."""

import sqlite3
import sys

ROWS = int(sys.argv[1])


def rows():
    state = 1
    for number in range(ROWS):
        state = (state * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        yield number, state >> 44, f"name-{state >> 40:x}", state % 1000 / 8, f"{state:x}" * 3


database = sqlite3.connect(":memory:")
database.execute("PRAGMA temp_store = MEMORY")
database.execute("CREATE TABLE parts (id INTEGER PRIMARY KEY, class INTEGER, name TEXT, weight REAL, note TEXT)")
database.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", rows())
database.execute("CREATE INDEX by_class ON parts (class, weight)")
database.execute("CREATE INDEX by_name ON parts (name)")
database.execute("UPDATE parts SET weight = weight + 1 WHERE class % 7 = 3")
database.execute("DELETE FROM parts WHERE id % 13 = 5")
database.commit()
for query in [
    "SELECT count(*), sum(class), sum(weight), min(name), max(name) FROM parts",
    "SELECT class % 50, count(*), sum(weight), min(note) FROM parts GROUP BY class % 50 ORDER BY 1",
    "SELECT id, name, note FROM parts WHERE class BETWEEN 5000 AND 5040 ORDER BY class, weight, id LIMIT 200",
    "SELECT a.id, b.id FROM parts a JOIN parts b ON a.name = b.name AND a.id < b.id ORDER BY 1, 2 LIMIT 500",
    "SELECT count(DISTINCT substr(note, 3, 5)) FROM parts",
    "PRAGMA integrity_check",
]:
    for row in database.execute(query):
        print(*row)
