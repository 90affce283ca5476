CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, town INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
  INSERT INTO people SELECT i, 'name ' || (i * 7919 % 200000), i % 977, printf('some text about %d that fills a line', i) FROM n;
CREATE INDEX by_name ON people (name);
CREATE INDEX by_town ON people (town);
WITH RECURSIVE n(i, at) AS (SELECT 1, 1 UNION ALL SELECT i + 1, (at * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 100000)
  SELECT sum(length(note)) FROM n JOIN people ON people.name = 'name ' || (at % 200000);
SELECT count(*), max(total) FROM (SELECT town, count(*) AS total FROM people GROUP BY town);
UPDATE people SET note = note || '!' WHERE id % 10 = 3;
