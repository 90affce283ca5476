"""A C++ file that makes a compiler work: many instances of templates."""
import sys
print("#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n#include <functional>\n#include <iostream>")
for i in range(int(sys.argv[1])):
    print(f"struct T{i} {{ int v; bool operator<(const T{i}& o) const {{ return v < o.v; }} }};\n"
          f"int f{i}(int n) {{ std::map<T{i}, std::vector<std::string>> m; for (int i = 0; i < n; i++) m[T{i}{{i * {i + 3} % 17}}].push_back(std::to_string(i)); "
          f"std::vector<T{i}> v; for (auto& e : m) v.push_back(e.first); std::sort(v.begin(), v.end()); std::function<int()> g = [&] {{ return int(v.size()); }}; return g(); }}")
print("int main() { int s = 0;", *(f"s += f{i}(9);" for i in range(int(sys.argv[1]))), "std::cout << s; }")
