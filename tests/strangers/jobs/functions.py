"""A large C or Rust file: many functions. usage: functions.py c|rust COUNT"""
import sys
count = int(sys.argv[2])
if sys.argv[1] == "c":
    print("static unsigned t[256];")
    for i in range(count):
        print(f"unsigned f{i}(unsigned x) {{ for (unsigned i = 0; i < x % {i + 7}; i++) {{ t[(x + i) & 255] += i * {i + 1}u; if (t[i & 255] > {i * 977}u) x ^= t[(i * {i + 3}u) & 255]; else x += i; }} "
              f"switch (x % 5) {{ case 0: return x + {i}; case 1: return t[x & 255]; case 2: return x * {i + 11}; default: return f{max(i - 1, 0)}(x >> 1); }} }}" if i else "unsigned f0(unsigned x) { return x; }")
    print("int main(void) { return f%d(77) & 127; }" % (count - 1))
else:
    for i in range(count):
        print(f"#[derive(Debug, Clone, PartialEq, PartialOrd)] pub struct S{i} {{ a: u64, b: Vec<String>, c: Option<Box<S{i}>> }}\n"
              f"pub fn f{i}(x: u64) -> u64 {{ let mut v: Vec<S{i}> = (0..x % 9).map(|k| S{i} {{ a: k * {i + 3}, b: vec![format!(\"{{k}}\")], c: None }}).collect(); "
              f"v.sort_by(|p, q| p.partial_cmp(q).unwrap()); v.iter().map(|s| s.a + s.b.len() as u64 + s.c.is_some() as u64).sum() }}")
    print("fn main() { println!(\"{}\",", " + ".join(f"f{i}({i})" for i in range(count)), "); }")
