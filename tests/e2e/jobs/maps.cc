// maps [THOUSANDS]: ordered and hashed maps of strings, filled, changed and emptied by two threads and the main one.
// Every value can be computed from its key, so the program checks itself; it prints `maps: right` and a checksum.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

std::uint64_t mix(std::uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

std::string key_of(std::uint64_t number)
{
    return "key-" + std::to_string(mix(number));
}

std::string value_of(std::uint64_t number, unsigned version)
{
    std::uint64_t seed = mix(number * 31 + version);
    return std::string(20 + seed % 180, static_cast<char>('a' + seed % 26)) + std::to_string(seed);
}

[[noreturn]] void wrong(const char *what, std::uint64_t number)
{
    std::fprintf(stderr, "maps: %s is wrong at %llu\n", what, static_cast<unsigned long long>(number));
    std::exit(1);
}

template <typename Map>
void exercise(Map &map, std::uint64_t from, std::uint64_t to)
{
    for (std::uint64_t n = from; n < to; n++)
        map[key_of(n)] = value_of(n, 0);
    for (std::uint64_t n = from; n < to; n += 3)
        map[key_of(n)] = value_of(n, 1);
    for (std::uint64_t n = from; n < to; n += 5)
        map.erase(key_of(n));
    std::uint64_t expected = 0;
    for (std::uint64_t n = from; n < to; n++) {
        bool erased = (n - from) % 5 == 0;
        auto found = map.find(key_of(n));
        if (erased != (found == map.end()))
            wrong("presence", n);
        if (!erased && found->second != value_of(n, (n - from) % 3 == 0))
            wrong("value", n);
        expected += !erased;
    }
    if (map.size() != expected)
        wrong("size", map.size());
}

} // namespace

int main(int argc, char **argv)
{
    std::uint64_t count = (argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 300) * 1000;
    std::map<std::string, std::string> ordered;
    std::unordered_map<std::string, std::string> hashed;
    std::thread first([&] { exercise(ordered, 0, count); });
    std::thread second([&] { exercise(hashed, count, 2 * count); });
    std::vector<std::string> texts;
    std::list<std::vector<std::uint64_t>> vectors;
    for (std::uint64_t n = 0; n < count / 2; n++) {
        texts.push_back(value_of(n, 2));
        if (n % 64 == 0)
            vectors.emplace_back(n % 1024, n);
        if (n % 640 == 0)
            vectors.pop_front();
    }
    first.join();
    second.join();

    std::uint64_t sum = 0;
    std::string previous;
    for (const auto &[key, value] : ordered) {
        if (key <= previous)
            wrong("order", sum);
        previous = key;
        sum = mix(sum ^ value.size() ^ static_cast<unsigned char>(value[0]));
    }
    for (std::uint64_t n = 0; n < texts.size(); n++)
        if (texts[n] != value_of(n, 2))
            wrong("text", n);
    for (const auto &vector : vectors)
        for (std::uint64_t word : vector)
            if (word != vector.front())
                wrong("vector", word);
    ordered.clear();
    std::vector<std::string> copy(texts.rbegin(), texts.rend());
    for (std::uint64_t n = 0; n < copy.size(); n++)
        sum = mix(sum ^ copy[n].size());
    std::printf("maps: right, %llu\n", static_cast<unsigned long long>(sum));
}
