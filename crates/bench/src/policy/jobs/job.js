// Objects in a map, sorted and looked up.
const items = new Map();
for (let i = 0; i < 100000; i++) items.set('key ' + (i * 7919 % 100000), { id: i, text: 'text ' + i, list: [i, i + 1] });
const sorted = [...items.values()].sort((a, b) => a.text < b.text ? -1 : 1);
let at = 1, sum = 0;
for (let i = 0; i < 100000; i++) { at = (at * 48271) % 2147483647; sum += items.get('key ' + (at % 100000)).list[1]; }
console.log(sorted.length, sum);
